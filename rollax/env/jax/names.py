"""Environments in JAX by name: `jax:CartPole-v1`, `jax:brax/ant`. JAX is imported with the first creator."""

from __future__ import annotations

from typing import Any

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
LIBRARIES = ("brax", "gymnax", "jaxmarl", "jumanji", "navix", "pgx", "playground")
"""Libraries whose environments have names, each with a module in `rollax.env.jax.libraries`."""


def jax_ids() -> list[str]:
    """The names of rollax's own environments in JAX, with their prefix."""
    return [JAX_ENV + name for name in _OWN]


def library_prefix(library: str) -> str:
    """What the names of a library's environments begin with."""
    return f"{JAX_ENV}{library}/"


def library_ids(library: str) -> list[str]:
    """The names of a library's environments, with their prefix; imports the library, which takes seconds.

    Raises:
        ConfigError: the library is not installed.
    """
    return sorted(library_prefix(library) + name for name in _of_library(library, "names")())


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
        if library in LIBRARIES:
            self._make, self.entry_point = _of_library(library, "creator")(name_there)
        elif name in _OWN:
            path, limit = _OWN[name]
            self.entry_point = import_object(ImportPath(path), env_id)
            self._make = import_object(ImportPath("rollax.env.jax.wrappers:limited"), env_id)(self.entry_point, limit)
        else:
            families = ", ".join(f"{library_prefix(known)}…" for known in LIBRARIES)
            raise ConfigError("Unknown environment in JAX.", "env", env_id).expected(
                f"{', '.join(jax_ids())}, or a name of a library: {families}", nearest(name, _OWN)
            )

    def __call__(self, context: EnvContext) -> object:
        return self._make(**context)


def _of_library(library: str, function: str) -> Any:
    path = ImportPath(f"rollax.env.jax.libraries.{library}_env:{function}")
    return import_object(path, f"env {library_prefix(library)}…")
