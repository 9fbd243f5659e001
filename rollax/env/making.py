"""From a creator to the `BaseEnv` of one worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rollax.env.base_env import BaseEnv
from rollax.env.context import EnvContext
from rollax.env.convert import to_base_env
from rollax.errors import ConfigError, EnvError


def make_base_env(creator: Callable[[EnvContext], Any], context: EnvContext, num_envs: int, **settings: Any) -> BaseEnv:
    """The `BaseEnv` of one worker: a creator that can make a native vector env does, any other makes copies.

    Args:
        creator: makes an environment from an `EnvContext`.
        context: for the first of them.
        num_envs: how many.
        settings: keywords of `to_base_env`.
    """

    def make_env(index: int) -> Any:
        return _make(creator, context.at(index))

    if settings.get("remote_envs"):
        context.remote = True
        return to_base_env(None, make_env, num_envs, **settings)
    make_vector = getattr(creator, "make_vector", None)
    if make_vector is not None:
        return to_base_env(make_vector(context, num_envs), **settings)
    return to_base_env(_make(creator, context), make_env, num_envs, **settings)


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
