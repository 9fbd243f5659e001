"""Environments in JAX by name: `jax:CartPole-v1`, `jax:brax/ant`. JAX is imported with the first creator."""

from __future__ import annotations

from rollax.core.importing import JAX_ENV, ImportPath, import_object
from rollax.env.registry import EnvContext
from rollax.errors import ConfigError, nearest

# Class and number of steps after which episodes are truncated.
_OWN = {
    "CartPole-v1": ("rollax.env.jax.classic_control:CartPole", 500),
    "Pendulum-v1": ("rollax.env.jax.classic_control:Pendulum", 200),
    "Acrobot-v1": ("rollax.env.jax.classic_control:Acrobot", 500),
    "MountainCar-v0": ("rollax.env.jax.classic_control:MountainCar", 200),
    "MountainCarContinuous-v0": ("rollax.env.jax.classic_control:MountainCarContinuous", 999),
    "FrozenLake-v1": ("rollax.env.jax.grid_world:FrozenLake", 100),
}
_LIBRARIES = ("brax", "gymnax", "jaxmarl", "pgx")


def jax_ids() -> list[str]:
    """The names of rollax's own environments in JAX, with their prefix."""
    return [JAX_ENV + name for name in _OWN]


class JaxCreator:
    """Makes the environment of a name; `env_config` has its settings and `max_episode_steps`.

    Args:
        env_id: the name with its prefix, "jax:CartPole-v1".
    Attributes:
        entry_point: the class or function that takes the settings.
    Raises:
        ConfigError: an unknown name, or a library that is not installed.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id, name = env_id, env_id.removeprefix(JAX_ENV)
        library, _, name_there = name.partition("/")
        if library in _LIBRARIES:
            named = import_object(ImportPath(f"rollax.env.jax.libraries:{library}"), env_id)
            self._make, self.entry_point = named(name_there)
        elif name in _OWN:
            path, limit = _OWN[name]
            self.entry_point = import_object(ImportPath(path), env_id)
            self._make = import_object(ImportPath("rollax.env.jax.wrappers:limited"), env_id)(self.entry_point, limit)
        else:
            families = ", ".join(f"{JAX_ENV}{known}/…" for known in _LIBRARIES)
            raise ConfigError("Unknown environment in JAX.", "env", env_id).expected(
                f"{', '.join(jax_ids())}, or a name of a library: {families}", nearest(name, _OWN)
            )

    def __call__(self, context: EnvContext) -> object:
        return self._make(**context)
