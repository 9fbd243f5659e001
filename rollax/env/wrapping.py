"""The wrappers of the config key `env_wrappers`, around one sub-environment."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from rollax.core.cleanup import cleanup_on_error
from rollax.core.frozen import thawed
from rollax.core.importing import import_object
from rollax.env import checks
from rollax.env.adapters import adapted
from rollax.errors import ConfigError, EnvError, RollaxError, text_of


def in_wrappers(env: Any, wrappers: Sequence[Any]) -> Any:
    """Returns the environment in its wrappers, the first of which is the innermost.

    If a wrapper fails, the environment is closed. An environment of a kind that rollax adapts to
    Gymnasium, such as the old Gym interface, is adapted before a wrapper of Gymnasium is applied.

    Args:
        env: an environment of any kind, as the creator returned it.
        wrappers: each a class or function of one environment, or its `ImportPath`; or a pair of it and keywords.
    Raises:
        ConfigError: a path that cannot be imported or comes from an untrusted file, or keyword arguments that a wrapper
            does not accept.
        EnvError: a wrapper raised, or did not return an environment.
    """
    for wrapper in wrappers:
        with cleanup_on_error(getattr(env, "close", lambda: None)):
            env = _in_wrapper(env, *(wrapper if isinstance(wrapper, tuple) else (wrapper, {})))
    return env


def _in_wrapper(env: Any, wrapper: Any, keywords: Any) -> Any:
    if isinstance(wrapper, str):
        wrapper = import_object(wrapper, "config key 'env_wrappers'")
    if isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper):
        env = adapted(env)
    try:
        wrapped = wrapper(env, **thawed(dict(keywords)))
    except RollaxError:
        raise
    except Exception as error:
        name = f"wrapper {_name_of(wrapper)}"
        if keywords and isinstance(error, TypeError):
            got = f"{dict(keywords)}: {type(error).__name__}: {text_of(error)}"
            raise ConfigError(f"The {name} does not accept these keywords.", "config key 'env_wrappers'", got).expected(
                f"those of {_name_of(wrapper)}{_signature(wrapper)}", "correct the keywords"
            ) from error
        raise EnvError.raised(f"The {name}", error, checks.env_name(env), "an environment in the wrapper").fix(
            checks.fix_of(error, name)
        ) from error
    if wrapped is None:
        raise EnvError("A wrapper returned no environment.", f"env_wrappers, {_name_of(wrapper)}", wrapped).expected(
            "an environment", "return the environment from the function"
        )
    return wrapped


def _name_of(wrapper: Any) -> str:
    return getattr(wrapper, "__qualname__", None) or repr(wrapper)


def _signature(wrapper: Any) -> str:
    try:
        return str(inspect.signature(wrapper))
    except (TypeError, ValueError):  # a builtin
        return ""
