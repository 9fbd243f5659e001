"""A clock in JAX, of which every number follows from its seed and the actions, and its story in a bare loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax import JaxEnv, Outcome, to_base_env
from rollax.env.rows import DEFAULT_AGENT
from tests.env.drive import Event, Moment, Story
from tests.env.worlds import ACTION_SPACE, OBS_SPACE, action_for


class JaxClock(JaxEnv):
    """As `Clock`: episodes of 1 to 4 steps end by termination, truncation, or both at once."""

    observation_space, action_space = OBS_SPACE, ACTION_SPACE

    def reset(self, key):
        kind, length, number = jax.random.split(key, 3)
        state = {
            "count": jnp.int32(0),
            "length": jax.random.randint(length, (), 1, 5),
            "kind": jax.random.randint(kind, (), 0, 3),
        }
        return state, jnp.stack([0.0, 0.0, jax.random.uniform(number)])

    def step(self, state, action, key):
        count = state["count"] + 1
        over = count == state["length"]
        obs = jnp.stack([count.astype(float), action.astype(float), jax.random.uniform(key)])
        flags = over & (state["kind"] != 1), over & (state["kind"] != 0)
        return Outcome({**state, "count": count}, obs, count + action / 10, *flags)


class Both(JaxEnv):
    """Nested observations and actions; the observation has what was acted, so that a wrong order shows."""

    observation_space = spaces.Dict(
        {"seen": spaces.Tuple([spaces.Box(-5, 5, (2,), np.float32), spaces.Discrete(7)]), "count": spaces.Discrete(9)}
    )
    action_space = spaces.Dict({"move": spaces.Box(-2, 3, (2,), np.float32), "turn": spaces.MultiDiscrete([2, 3])})

    def reset(self, key):
        return jnp.int32(0), self._obs(jnp.zeros(2), jnp.zeros(2, int), 0)

    def step(self, state, action, key):
        obs = self._obs(action["move"], action["turn"], state + 1)
        return Outcome(state + 1, obs, action["move"].sum(), state == 4, state == 7)

    def _obs(self, move, turn, count):
        return {"seen": (move, turn.sum()), "count": count}


def jax_clocks(num_envs: int) -> Any:
    return to_base_env(JaxClock(), num_envs=num_envs)


def jax_clock_story(seed: int, moments: int) -> Story:
    """What happens to a clock of this seed, one function call after another."""
    env, key, draws = JaxClock(), jax.random.key(np.uint32(seed)), 0
    story: list[Moment] = []

    def event(obs: Any, reward: float | None, terminated: bool, truncated: bool) -> None:
        over = bool(terminated or truncated)
        told = Event(
            DEFAULT_AGENT, tuple(np.asarray(obs).tolist()), reward, *map(bool, (terminated, truncated)), not over, {}
        )
        story.append(Moment([told], over))

    state = None
    while len(story) < moments:
        draw, draws = jax.random.fold_in(key, np.uint32(draws)), draws + 1
        if state is None:
            state, obs = env.reset(draw)
            event(obs, None, False, False)
            continue
        state, obs, reward, terminated, truncated = env.step(state, jnp.int32(action_for(np.asarray(obs))), draw)
        event(obs, float(reward), terminated, truncated)
        state = None if terminated or truncated else state
    return story
