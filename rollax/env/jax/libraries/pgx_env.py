"""Games of pgx, for one player or several: `jax:pgx/minatar-breakout`, `jax:pgx/connect_four`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.core.spaces import ACTION_MASK
from rollax.env.jax.jax_env import JaxEnv, MultiAgentJaxEnv, Outcome
from rollax.env.jax.libraries.library import NamedEnv, check_name, library_module, unbounded
from rollax.env.jax.wrappers import limited
from rollax.errors import EnvError

_ARGUMENTS = {"go_9x9": {"size": 9}}  # of the class, where they are not the defaults


class PgxEnv(JaxEnv):
    """A game of pgx for one player. The observation is a Dict of `observation` and `action_mask`, the legal actions.

    Args:
        env: a `pgx.Env`.
    Raises:
        EnvError: a game for several players.
    """

    # Games that end only by a timer. The player does not see the timer, and pgx reports the end as `terminated`.
    _ends_by_time = frozenset({"minatar-freeway"})

    def __init__(self, env: Any) -> None:
        if env.num_players != 1:
            raise EnvError("The game has several players.", f"PgxEnv({env.id})", f"{env.num_players} players").expected(
                "1", "use PgxGame(env)"
            )
        self.env = env
        self.observation_space = spaces.Dict(_parts(env))
        self.action_space = spaces.Discrete(env.num_actions)

    def __repr__(self) -> str:
        return f"PgxEnv({self.env.id})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.init(key)
        return state, self._seen(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state = self.env.step(state, action, key)
        over, never = state.terminated, jnp.bool_(False)
        ends = (never, over) if self.env.id in self._ends_by_time else (over, state.truncated)
        return Outcome(state, self._seen(state), state.rewards[0], *ends)

    def _seen(self, state: Any) -> dict[str, Any]:
        return {"observation": state.observation, ACTION_MASK: state.legal_action_mask}


class PgxGame(MultiAgentJaxEnv):
    """A game of pgx for several players, who take turns; the agents are `player_0`, `player_1`, ...

    The observation of each player is a Dict of `observation`, `to_move` and `action_mask`. A player who waits has one
    valid action, number 0, which has no effect.

    Args:
        env: a `pgx.Env`.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.agents = env, tuple(f"player_{number}" for number in range(env.num_players))
        self.observation_space = spaces.Dict({**_parts(env), "to_move": spaces.MultiBinary(1)})
        self.action_space = spaces.Discrete(env.num_actions)
        self._waits = np.arange(env.num_actions) == 0

    def __repr__(self) -> str:
        return f"PgxGame({self.env.id})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.init(key)
        return state, self._seen(state)

    def step(self, state: Any, actions: Any, key: jax.Array) -> Outcome:
        action = jnp.stack([actions[agent] for agent in self.agents])[state.current_player]
        state = self.env.step(state, action, key)
        rewards = dict(zip(self.agents, state.rewards, strict=True))
        return Outcome(state, self._seen(state), rewards, state.terminated, state.truncated)

    def _seen(self, state: Any) -> dict[str, Any]:
        return {agent: self._seen_by(jnp.int32(player), state) for player, agent in enumerate(self.agents)}

    def _seen_by(self, player: jax.Array, state: Any) -> dict[str, Any]:
        moves = state.current_player == player
        mask = jnp.where(moves, state.legal_action_mask, self._waits)
        # `observe` warns about the argument for the player.
        return {"observation": self.env._observe(state, player), "to_move": moves[None], ACTION_MASK: mask}


def from_pgx(env: Any) -> JaxEnv:
    return PgxEnv(env) if env.num_players == 1 else PgxGame(env)


def _parts(env: Any) -> dict[str, spaces.Space]:
    """The spaces of `observation` and `action_mask`."""
    seen = jax.eval_shape(env.init, jax.random.key(0)).observation
    # As uint8, so that models treat boards and frames as images, and replay buffers stay small.
    observation = spaces.Box(0, 1, seen.shape, np.uint8) if seen.dtype == bool else unbounded(seen)
    return {"observation": observation, ACTION_MASK: spaces.MultiBinary(env.num_actions)}


def creator(name: str) -> NamedEnv:
    """`jax:pgx/minatar-breakout`; settings are arguments of the class, such as `sticky_action_prob`."""
    library = library_module("pgx")
    check_name("pgx", name, library.available_envs())
    game = type(library.make(name))
    arguments = _ARGUMENTS.get(name, {})
    return limited(lambda **settings: from_pgx(game(**{**arguments, **settings})), None), game


def names() -> Iterable[str]:
    return library_module("pgx").available_envs()
