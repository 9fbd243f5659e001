"""Environments of gymnax: `jax:gymnax/Breakout-MinAtar`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from gymnasium import Space, spaces

from rollax.core.spaces import Path, walk
from rollax.env.jax.jax_env import JaxEnv, Outcome
from rollax.env.jax.libraries.library import NamedEnv, check_name, module_in_no_extra
from rollax.errors import ConfigError

_NEW_GYMNAX = "pip install 'gymnax>=1.0'"


class GymnaxEnv(JaxEnv):
    """An environment of gymnax, which truncates episodes after the number of steps in its parameters.

    Args:
        env: a `gymnax.environments.environment.Environment`.
        params: parameters of the environment; None for `env.default_params`.
    Raises:
        ConfigError: a gymnax before 1.0.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        if not hasattr(env, "is_truncated"):
            raise ConfigError(
                "gymnax is too old.", "env", "a version that does not tell time limits from ends"
            ).expected("gymnax 1.0 or newer", _NEW_GYMNAX)
        self.env, self.params = env, env.default_params if params is None else params
        convert = importlib.import_module("gymnax.environments.spaces").gymnax_space_to_gym_space
        obs, _ = jax.eval_shape(env.reset_env, jax.random.key(0), self.params)
        self.observation_space = walk(_in_dtype, convert(env.observation_space(self.params)), obs)
        self.action_space = convert(env.action_space(self.params))

    def __repr__(self) -> str:
        return f"GymnaxEnv({self.env.name})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, self.params)
        return state, obs

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        return Outcome(state, obs, reward, terminated, self.env.is_truncated(state, self.params))


def creator(name: str) -> NamedEnv:
    """`jax:gymnax/CartPole-v1`; settings are fields of the environment's parameters, or keywords of its class."""
    library = _library()
    check_name("gymnax", name, library.registered_envs)

    def make(**settings: Any) -> JaxEnv:
        if "max_episode_steps" in settings:
            settings["max_steps_in_episode"] = settings.pop("max_episode_steps")
        _, params = library.make(name)
        fields = {field.name for field in dataclasses.fields(params)} & settings.keys()
        env, params = library.make(name, **{key: settings[key] for key in settings.keys() - fields})
        return GymnaxEnv(env, params.replace(**{key: settings[key] for key in fields}))

    return make, type(library.make(name)[1])


def names() -> Iterable[str]:
    return _library().registered_envs


def _library() -> Any:
    return module_in_no_extra("gymnax", _NEW_GYMNAX)


def _in_dtype(space: Space, path: Path, obs: Any) -> Space:
    """The space, in the dtype of `obs` if the space declares integers for observations of floats, as in Catch."""
    if not isinstance(space, spaces.Box) or np.can_cast(obs.dtype, np.dtype(space.dtype), "same_kind"):
        return space
    return spaces.Box(space.low, space.high, dtype=obs.dtype)
