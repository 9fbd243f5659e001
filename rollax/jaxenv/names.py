"""Environments in JAX by name: `jax:CartPole-v1`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rollax.env.registry import EnvContext
from rollax.errors import ConfigError, nearest
from rollax.importing import JAX_ENV
from rollax.jaxenv.classic_control import CartPole, Pendulum
from rollax.jaxenv.jax_env import JaxEnv, TimeLimit


class _Named(NamedTuple):
    make: Callable[..., JaxEnv]
    max_episode_steps: int


_NAMED = {"CartPole-v1": _Named(CartPole, 500), "Pendulum-v1": _Named(Pendulum, 200)}


class JaxCreator:
    """Makes the environment of a name; `env_config` holds its settings, and `max_episode_steps`.

    Args:
        env_id: the name with its prefix, "jax:CartPole-v1".
    Raises:
        ConfigError: an unknown name.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id, name = env_id, env_id.removeprefix(JAX_ENV)
        if name not in _NAMED:
            raise ConfigError(
                "An unknown environment in JAX.",
                where="env",
                got=env_id,
                expected=" or ".join(f"{JAX_ENV}{known}" for known in _NAMED),
                fix=nearest(name, _NAMED) or "pass a subclass of rollax.JaxEnv, or register_env(name, creator)",
            )
        self._named = _NAMED[name]

    def __call__(self, context: EnvContext) -> JaxEnv:
        settings: dict[str, Any] = dict(context)
        limit = settings.pop("max_episode_steps", self._named.max_episode_steps)
        return TimeLimit(self._named.make(**settings), limit)

    @property
    def entry_point(self) -> Callable[..., JaxEnv]:
        """The class that makes the environment."""
        return self._named.make
