"""From a creator to the `BaseEnv` of one worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.context import EnvContext
from rollax.env.convert import to_base_env
from rollax.errors import ConfigError, EnvError, RollaxError


def make_base_env(creator: Callable[[EnvContext], Any], context: EnvContext, num_envs: int, **settings: Any) -> BaseEnv:
    """The `BaseEnv` of one worker: a creator that can make a native vector env does, any other makes copies.

    Args:
        creator: makes an environment from an `EnvContext`.
        context: for the first of them.
        num_envs: how many.
        settings: keywords of `to_base_env`.
    Raises:
        ConfigError: an `env_config` that the environment does not take.
        EnvError: what making one raised.
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
    except (
        Exception,
        SystemExit,
    ) as error:  # a module that exits as it is imported would end the run as if all was well
        raise _not_made(creator, context, error) from error


def _not_made(creator: Callable[[EnvContext], Any], context: EnvContext, error: BaseException) -> RollaxError:
    if not (context and isinstance(error, TypeError)):
        return checks.failed(error, "its creator", _name_of(creator))
    return ConfigError(
        "An env_config that the environment does not take.",
        where=f"env_config, env {_name_of(creator)}",
        got=f"{dict(context)!r}: TypeError: {error}",
        expected=_parameters_of(creator),
        fix="correct the keys of env_config; the traceback above shows who refused them",
    )


def _name_of(creator: Any) -> str:
    return getattr(creator, "env_id", None) or getattr(creator, "__qualname__", None) or repr(creator)


def _parameters_of(creator: Any) -> str:
    """What an environment is made from, as its signature says."""
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
                fix="leave env_config out, or let the class take it",
            ) from None
        return _called(creator)
    except ValueError:
        pass  # a builtin without a signature
    return _called(creator, context)


def _called(creator: Callable[..., Any], *context: EnvContext) -> Any:
    try:
        return creator(*context)
    except AttributeError as error:
        if error.name != "with_agent_groups":
            raise
        raise EnvError(
            "An environment that has no agent groups.",
            where=f"{creator!r}",
            got=error,
            expected="a MultiAgentEnv",
            fix="of PettingZoo's environments write from_pettingzoo(env).with_agent_groups({'team': [...]})",
        ) from error
