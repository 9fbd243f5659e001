"""What the adapters of several libraries share: imports, names, unbounded spaces, wrappers and time limits."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core.importing import JAX_ENV
from rollax.env.jax.jax_env import JaxEnv
from rollax.errors import ConfigError, EnvError, missing_package, not_installed

NamedEnv = tuple[Callable[..., JaxEnv], Callable[..., Any]]
"""A function that makes the environment from the settings in `env_config`, and the class or function that takes these
settings. Errors show the signature of that class or function."""


def library_module(name: str, package: str = "", extra: str = "jaxenvs") -> Any:
    """Imports a library of an extra of rollax, from `package` if its module has another name."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise not_installed(package, error, where="env", package=package, extra=extra) from error


def module_in_no_extra(name: str, fix: str) -> Any:
    """Imports a library that is in no extra of rollax, because the library excludes the newest Gymnasium."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # The library may be installed and lack its requirements, as after `pip install --no-deps`.
        missing = missing_package(error) or name
        fix = fix if missing == name else f"pip install {missing}"
        raise not_installed(name, error, where="env", package=name, fix=fix) from error


def check_name(library: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError.unknown(f"environment of {library}", name, known, f"env {JAX_ENV}{library}/{name}")


def unbounded(shapes: Any) -> Space:
    """The unbounded space of an array, or of a dict of arrays."""
    if hasattr(shapes, "shape"):
        return spaces.Box(-np.inf, np.inf, shapes.shape, np.float32)
    return spaces.Dict({key: unbounded(part) for key, part in shapes.items()})


def refuse_wrappers(env: Any, inside: str, is_refused: Callable[[type], bool], where: str, expected: str) -> None:
    """Raises EnvError if `env`, or an environment in the chain of attributes `inside`, is of a refused class."""
    inner = env
    while inner is not None:
        if is_refused(type(inner)):
            raise EnvError(
                "The environment has a wrapper that vectorizes it, resets it, or ends its episodes.",
                where,
                type(inner).__name__,
            ).expected(expected, "leave it out: rollax vectorizes, resets and sets max_episode_steps")
        inner = vars(inner).get(inside)


def without_limit(env: Any, attribute: str) -> tuple[Any, int | None]:
    """A copy of an environment without the time limit in this attribute, and the limit in steps.

    If an environment has another environment in its attribute `_env`, the limit is the limit of the innermost one:
    jaxmarl's SMAX with enemies has SMAX inside, and wrappers of jumanji have an environment inside.
    """
    env = inner = _copied(env)  # not in place: a creator may return the same object again
    while "_env" in vars(inner):
        inner._env = _copied(inner._env)
        inner = inner._env
    limit = getattr(inner, attribute, None)
    if limit is not None:
        setattr(inner, attribute, np.iinfo(np.int32).max)
    return env, limit


def _copied(env: Any) -> Any:
    """A shallow copy; `copy.copy` recurses for ever in a class whose `__getattr__` reads attributes."""
    copied = object.__new__(type(env))
    vars(copied).update(vars(env))
    return copied
