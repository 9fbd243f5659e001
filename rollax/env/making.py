"""From a creator to the `BaseEnv` of one worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.context import EnvContext
from rollax.env.convert import to_base_env
from rollax.errors import ConfigError, RollaxError


def make_base_env(creator: Callable[[EnvContext], Any], context: EnvContext, num_envs: int, **settings: Any) -> BaseEnv:
    """The `BaseEnv` of one worker: from the creator's `make_vector` if it has one, else of copies.

    Args:
        creator: makes an environment from an `EnvContext`.
        context: for the first environment.
        num_envs: how many.
        settings: keywords of `to_base_env`.
    Raises:
        ConfigError: an `env_config` that the environment does not take.
        EnvError: the creator raised.
    """

    def make_env(index: int) -> Any:
        return _make(creator, context.at(index))

    try:
        if settings.get("remote_envs"):
            context.remote = True
            return to_base_env(None, make_env, num_envs, **settings)
        make_vector = getattr(creator, "make_vector", None)
        if make_vector is not None:
            return to_base_env(make_vector(context, num_envs), **settings)
        return to_base_env(_make(creator, context), make_env, num_envs, **settings)
    except RollaxError:
        raise
    except (Exception, SystemExit) as error:  # a module that exits at its import would end the run without an error
        raise _not_made(creator, context, error) from error


def _not_made(creator: Callable[[EnvContext], Any], context: EnvContext, error: BaseException) -> RollaxError:
    if not (context and isinstance(error, TypeError)):
        return checks.failed(error, "its creator", _name_of(creator))
    return ConfigError(
        "An env_config that the environment does not take.",
        where=f"env_config, env {_name_of(creator)}",
        got=f"{dict(context)!r}: TypeError: {error}",
        expected=_parameters_of(creator),
        fix="correct the keys of env_config; the traceback above shows what refused them",
    )


def _name_of(creator: Any) -> str:
    return getattr(creator, "env_id", None) or getattr(creator, "__qualname__", None) or repr(creator)


def _parameters_of(creator: Any) -> str:
    """The signature of what makes an environment."""
    made_by = getattr(creator, "entry_point", creator)
    try:
        return f"{getattr(made_by, '__qualname__', made_by)}{inspect.signature(made_by)}"
    except (TypeError, ValueError):
        return "the keywords of its constructor"


def _make(creator: Callable[..., Any], context: EnvContext) -> Any:
    try:
        inspect.signature(creator).bind(context)
    except TypeError:
        if context:
            raise ConfigError(
                "An environment that takes no env_config.",
                where="env_config",
                got=dict(context),
                expected=f"{creator!r} to take one argument, the EnvContext",
                fix="omit env_config, or let the class take it",
            ) from None
        return creator()
    except ValueError:
        pass  # a builtin without a signature
    return creator(context)
