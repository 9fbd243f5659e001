"""Environments of navix, MiniGrid in JAX: `jax:navix/Navix-Empty-8x8-v0`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from gymnasium import Space, spaces

from rollax.core.importing import JAX_ENV
from rollax.env.jax.jax_env import JaxEnv, Outcome
from rollax.env.jax.libraries.library import NamedEnv, check_name, library_module, unbounded
from rollax.errors import ConfigError

# Functions of navix.observations.
_SYMBOLS = ("categorical", "categorical_first_person", "symbolic", "symbolic_first_person")
_PIXELS = ("rgb", "rgb_first_person")


class NavixEnv(JaxEnv):
    """An environment of navix, which truncates episodes after its `max_steps`.

    Pixels are uint8 in [0, 255]. Other observations have no bounds: the declared ones are not always right.

    Args:
        env: a `navix.Environment`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        observations = importlib.import_module("navix.observations")
        symbols = [getattr(observations, name) for name in _SYMBOLS]
        # The state caches the walls' pixels, 20 times as many bytes as the rest. A user's observation_fn may use them.
        self._draws = env.observation_fn not in symbols
        self.observation_space = self._space_of(jax.eval_shape(env.reset, jax.random.key(0)).observation)
        self.action_space = spaces.Discrete(int(env.action_space.n))

    def __repr__(self) -> str:
        return f"NavixEnv({type(self.env).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        step = self.env.reset(key)
        return self._kept(step), step.observation

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        # `env.step` calls `_step`, or `reset` after an end; if it is vectorized, it computes both at each step.
        step = self.env._step(state, action)
        return Outcome(self._kept(step), step.observation, step.reward, step.is_termination(), step.is_truncation())

    def _kept(self, step: Any) -> Any:
        return step if self._draws else step.replace(state=step.state.replace(cache=None))

    def _space_of(self, obs: Any) -> Space:
        pixels = self._draws and obs.dtype == np.uint8
        return spaces.Box(0, 255, obs.shape, np.uint8) if pixels else unbounded(obs)


def creator(name: str) -> NamedEnv:
    """`jax:navix/Navix-Empty-8x8-v0`; settings are arguments of `navix.make`.

    `observation_fn` may be the name of a function in `navix.observations`, such as "symbolic_first_person".
    """
    library = _library()
    check_name("navix", name, library.registry())

    def make(**settings: Any) -> JaxEnv:
        if "max_episode_steps" in settings:
            settings["max_steps"] = settings.pop("max_episode_steps")
        if isinstance(chosen := settings.get("observation_fn"), str):
            if chosen not in (*_SYMBOLS, *_PIXELS):
                where = f"env_config, env='{JAX_ENV}navix/{name}'"
                raise ConfigError.unknown("observation_fn", chosen, (*_SYMBOLS, *_PIXELS), where)
            settings["observation_fn"] = getattr(library.observations, chosen)
        return NavixEnv(library.make(name, **settings))

    return make, library.Environment.create


def names() -> Iterable[str]:
    return _library().registry()


def _library() -> Any:
    return library_module("navix", extra="navix")
