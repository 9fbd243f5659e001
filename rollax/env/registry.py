"""From what a user names as an environment to a creator function of one `EnvContext`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollax.env.context import EnvContext
from rollax.errors import ConfigError

EnvCreator = Callable[[EnvContext], Any]
_creators: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Makes `name` usable as an environment; a later registration of the same name replaces the earlier one.

    Args:
        name: what configs and the command line call it.
        creator: takes one `EnvContext`, returns an environment of any kind.
    """
    if not callable(creator):
        raise ConfigError(
            "A creator that cannot be called.",
            where=f"register_env({name!r})",
            got=creator,
            expected="a function of one EnvContext, or a class",
            fix="pass the class itself, or lambda context: MyEnv(context)",
        )
    _creators[name] = creator


def registered_envs() -> list[str]:
    """The names registered in this process."""
    return sorted(_creators)


def env_creator(env: Any) -> EnvCreator:
    """The creator of an environment given as an id, a registered name, `module:Class`, a class, or a function.

    Raises:
        ConfigError: an unknown id (the nearest ones are named), or a `module:Class` that does not import.
    """
    if isinstance(env, str):
        if env in _creators:
            return _creators[env]
        module, _, attribute = env.partition(":")
        # Gymnasium too knows "module:id", which imports the module and then makes the id.
        if attribute and not env.startswith("ALE/") and env not in gym.registry and attribute not in gym.registry:
            found = import_attribute(env)
            if attribute not in gym.registry:
                return env_creator(found)
        return _from_id(env)
    if inspect.isclass(env) or callable(env):
        return env
    raise ConfigError(
        "Nothing that an environment can be made from.",
        where="env",
        got=env,
        expected="a Gymnasium id, a registered name, 'module:Class', a class taking env_config, or a creator function",
        fix="pass one of those; wrap an instance in a function of one EnvContext",
    )


def import_attribute(path: str) -> Any:
    """The object that `module:Class` names; the current folder is searched too.

    Raises:
        ConfigError: the module does not import or lacks the name.
    """
    module, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            "An environment class that does not import.",
            where=f"env={path!r}",
            got=f"{type(error).__name__}: {error}",
            expected="module:Class, importable from the current folder or the installed packages",
            fix="check the spelling, and that the module's own imports work: python -c 'import " + module + "'",
        ) from error


def _from_id(env_id: str) -> EnvCreator:
    import_atari_if_named(env_id)
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        known = [*_creators, *gym.registry]
        near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
        raise ConfigError(
            "An unknown environment.",
            where="env",
            got=f"{env_id!r} ({error})",
            expected=f"an id such as {', '.join(map(repr, near))}" if near else "a Gymnasium id or a registered name",
            fix="correct the name, install the package that brings it, or call register_env(name, creator)",
        ) from error
    return lambda context: gym.make(env_id, **context)


def import_atari_if_named(env_id: str) -> None:
    """Registers ale-py's ids where one of them is asked for."""
    if not env_id.startswith("ALE/"):
        return
    try:
        import ale_py
    except ImportError as error:
        raise ConfigError(
            "Atari is not installed.",
            where=f"env={env_id!r}",
            got=str(error),
            expected="the package ale-py",
            fix="pip install 'rollax[atari]'",
        ) from error
    gym.register_envs(ale_py)
