"""Environments of jaxmarl, of several agents: `jax:jaxmarl/MPE_simple_spread_v3`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from rollax.core.importing import JAX_ENV
from rollax.core.spaces import ACTION_MASK
from rollax.env.jax.jax_env import JaxEnv, MultiAgentJaxEnv, Outcome
from rollax.env.jax.libraries.library import NamedEnv, check_name, module_in_no_extra, unbounded, without_limit
from rollax.env.jax.wrappers import TimeLimit
from rollax.errors import ConfigError

_MPE = "jaxmarl.environments.mpe."  # its constructors take any keyword


class JaxMarlEnv(MultiAgentJaxEnv):
    """An environment of jaxmarl. Observations have no bounds, because jaxmarl's declared bounds are not always right.

    If all actions are discrete and the environment reports the available actions, an observation is a Dict of
    `observation` and `action_mask`.

    Args:
        env: a `jaxmarl.environments.multi_agent_env.MultiAgentEnv` without a time limit.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.agents = env, tuple(env.agents)
        self.action_spaces = {agent: _action_space(env.action_space(agent)) for agent in self.agents}
        obs, state = jax.eval_shape(env.reset, jax.random.key(0))
        self._masked = all(isinstance(space, spaces.Discrete) for space in self.action_spaces.values())
        try:
            jax.eval_shape(env.get_avail_actions, state)
        except NotImplementedError:
            self._masked = False
        self.observation_spaces = {agent: self._space_of(agent, obs[agent]) for agent in self.agents}

    def __repr__(self) -> str:
        return f"JaxMarlEnv({type(self.env).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs, state = self.env.reset(key)
        return state, self._seen(obs, state)

    def step(self, state: Any, actions: Any, key: jax.Array) -> Outcome:
        obs, state, rewards, dones, _ = self.env.step_env(key, state, actions)
        return Outcome(
            state, self._seen(obs, state), {agent: rewards[agent] for agent in self.agents}, dones["__all__"]
        )

    def _space_of(self, agent: str, obs: Any) -> Space:
        action_space = self.action_spaces[agent]
        if not self._masked or not isinstance(action_space, spaces.Discrete):
            return unbounded(obs)
        return spaces.Dict({"observation": unbounded(obs), ACTION_MASK: spaces.MultiBinary(int(action_space.n))})

    def _seen(self, obs: Any, state: Any) -> dict[str, Any]:
        if not self._masked:
            return {agent: obs[agent] for agent in self.agents}
        legal = self.env.get_avail_actions(state)
        masks = {agent: jnp.asarray(legal[agent], jnp.int8) for agent in self.agents}
        return {agent: {"observation": obs[agent], ACTION_MASK: masks[agent]} for agent in self.agents}


def from_jaxmarl(env: Any, *limit: int | None) -> JaxEnv:
    """An environment of jaxmarl, truncated after its own limit of steps, or after `limit`."""
    env, own = without_limit(env, "max_steps")
    steps = limit[0] if limit else own
    return JaxMarlEnv(env) if steps is None else TimeLimit(JaxMarlEnv(env), steps)


def creator(name: str) -> NamedEnv:
    """`jax:jaxmarl/MPE_simple_spread_v3`; settings are arguments of the class."""
    library = _library()
    check_name("jaxmarl", name, library.registered_envs)

    def make(**settings: Any) -> JaxEnv:
        limit = [settings.pop("max_episode_steps")] if "max_episode_steps" in settings else []
        env = library.make(name, **settings)
        if type(env).__module__.startswith(_MPE):
            _refuse_ignored(env, settings, f"env_config, env='{JAX_ENV}jaxmarl/{name}'")
        return from_jaxmarl(env, *limit)

    return make, type(library.make(name))


def names() -> Iterable[str]:
    return _library().registered_envs


def _library() -> Any:
    return module_in_no_extra("jaxmarl", "pip install jaxmarl")


def _refuse_ignored(env: Any, settings: Iterable[str], where: str) -> None:
    """Raises ConfigError for a setting that is neither an argument of a constructor nor an attribute of `env`."""
    known = {name for base in type(env).__mro__ for name in inspect.signature(base.__init__).parameters}
    for key in settings:
        if key not in known and not hasattr(env, key):
            raise ConfigError.unknown(
                f"setting '{key}' of {type(env).__name__}", key, known - {"self", "args", "kwargs"}, where
            )


def _action_space(space: Any) -> Space:
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), space.shape) for bound in (space.low, space.high))
    return spaces.Box(low, high)
