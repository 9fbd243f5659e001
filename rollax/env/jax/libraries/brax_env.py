"""Environments of brax: `jax:brax/ant`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.env.jax.jax_env import JaxEnv, Outcome
from rollax.env.jax.libraries.library import NamedEnv, check_name, library_module, refuse_wrappers, unbounded
from rollax.env.jax.wrappers import TimeLimit, limited

_STEPS = 1000


class BraxEnv(JaxEnv):
    """An environment of brax, without the wrappers of brax's training. Actions are in [-1, 1], as for brax's agents.

    Args:
        env: a `brax.envs.Env`.
    Raises:
        EnvError: a wrapper that vectorizes or resets the environment, or ends episodes by a time limit.
    """

    _refused_wrappers = frozenset({"BraxAutoResetWrapper", "BraxDomainRandomizationVmapWrapper"})  # of Playground
    _made_by = "brax.envs.get_environment"

    def __init__(self, env: Any) -> None:
        self.env = env
        refuse_wrappers(env, "env", self._is_refused, repr(self), f"an environment as {self._made_by} makes it")
        # Only traced, because running a reset that is not compiled as a whole compiles each operation separately.
        self.observation_space = unbounded(jax.eval_shape(env.reset, jax.random.key(0)).obs)
        self.action_space = spaces.Box(-1, 1, (env.action_size,), np.float32)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.env).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self.env.reset(key)
        return state, state.obs

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state = self.env.step(state, action)
        return Outcome(state, state.obs, state.reward, jnp.asarray(state.done, bool))

    def _is_refused(self, cls: type) -> bool:
        return cls.__module__ == "brax.envs.wrappers.training" or cls.__name__ in self._refused_wrappers


def from_brax(env: Any) -> JaxEnv:
    """An environment of brax, truncated after 1000 steps, the default of `brax.envs.create`."""
    return TimeLimit(BraxEnv(env), _STEPS)


def creator(name: str) -> NamedEnv:
    """`jax:brax/ant`; settings are arguments of the class, such as `backend`."""
    classes = _classes()
    check_name("brax", name, classes)
    return limited(lambda **settings: BraxEnv(classes[name](**settings)), _STEPS), classes[name]


def names() -> Iterable[str]:
    return _classes()


def _classes() -> dict[str, Any]:
    return library_module("brax.envs")._envs
