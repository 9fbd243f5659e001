"""Copies of one environment: how they are made, and whether they are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym

from rollax.env import checks
from rollax.errors import EnvError, SpaceError
from rollax.spaces import check_space, same_space

_KINDS = ("observation_space", "action_space")


class Spaces(NamedTuple):
    """The spaces of each copy in the config; None leaves one to the environment."""

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None


NO_SPACES = Spaces()


@dataclass(frozen=True, slots=True)
class EnvCopies:
    """An environment, and how copies of it are made.

    Args:
        first: the environment.
        make_env: makes the others, by vector index.
        num_envs: how many in all.
        declared: the spaces of the config.
        restart_failed: recreate those that fail.
    """

    first: Any
    make_env: Callable[[int], Any] | None = None
    num_envs: int = 1
    declared: Spaces = NO_SPACES
    restart_failed: bool = False

    def make(self, *, may_lack_spaces: bool = False) -> list[Any]:
        """The environment and its copies, as `make_copies`."""
        return make_copies(
            [self.first], self.make_env, self.num_envs, may_lack_spaces=may_lack_spaces, declared=self.declared
        )

    def vector(self) -> Any:
        """The environment, of a kind that brings its own sub-environments."""
        if self.restart_failed:
            name = type(self.first).__name__
            checks.say_once(
                "restarts", name, f"{name} brings its own sub-environments: one that fails cannot be recreated."
            )
        return self.first


def no_more(index: int) -> Any:
    """Raises: there is no `make_env`."""
    raise EnvError(
        "Too few environments.",
        where=f"sub-environment {index}",
        got="no make_env",
        expected="a function of the vector index that makes it",
        fix="pass make_env to to_base_env",
    )


def make_copies(
    existing: Sequence[Any],
    make_env: Callable[[int], Any] | None,
    num_envs: int,
    *,
    may_lack_spaces: bool = False,
    declared: Spaces = NO_SPACES,
) -> list[Any]:
    """The existing environments and, from `make_env`, those that are missing.

    Args:
        existing: the first ones.
        make_env: makes the sub-environment of a vector index.
        num_envs: how many in all.
        may_lack_spaces: a space may be None, as in multi-agent environments.
        declared: spaces of environments that have none before their first reset.
    Raises:
        EnvError: too few, no environment, or the same one twice.
        SpaceError: a missing or unsupported space, or copies whose spaces differ.
    """
    envs = list(existing)
    if len(envs) < num_envs and make_env is None:
        raise EnvError(
            "Too few environments.",
            where="the copies of one environment",
            got=f"{len(envs)} existing, no make_env",
            expected=f"{num_envs}",
            fix="pass make_env, a function of the vector index, or as many existing environments as num_envs",
        )
    for index in range(len(envs), num_envs):
        assert make_env is not None
        envs.append(make_env(index))
    for index, env in enumerate(envs):
        where = f"{env_name(env)}, sub-environment {index}"
        if not (hasattr(env, "reset") and hasattr(env, "step")):
            raise EnvError(
                "No environment.",
                where=where,
                got=env,
                expected="an object with reset and step",
                fix="return the env from its creator",
            )
        if any(env is other for other in envs[:index]):
            raise EnvError(
                "The same environment twice.",
                where=where,
                got=env,
                expected="a separate instance for each sub-environment",
                fix="make the env inside the creator function, not outside",
            )
        check_spaces(env, envs[0], where, may_lack_spaces=may_lack_spaces, declared=declared)
    return envs


def space_of(env: Any, kind: str, declared: Spaces = NO_SPACES) -> Any:
    """An environment's "observation_space" or "action_space", or else the declared one."""
    space = getattr(env, kind, None)
    return getattr(declared, kind) if space is None else space


def env_name(env: Any) -> str:
    """The name of an environment in error messages: its Gymnasium id, or else its class."""
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return spec_id or type(getattr(env, "as_written", getattr(env, "unwrapped", env))).__name__


def check_spaces(
    env: Any, first: Any, where: str, *, may_lack_spaces: bool = False, declared: Spaces = NO_SPACES
) -> None:
    """Refuses a copy whose spaces are unsupported or differ from those of the first one.

    Raises:
        SpaceError: they do.
    """
    for kind in _KINDS:
        space, expected = space_of(env, kind, declared), space_of(first, kind, declared)
        if space is not None or not may_lack_spaces:
            check_space(space, f"{where}, {kind}")
        if space is not expected and (space is None or expected is None or not same_space(space, expected)):
            raise SpaceError(
                "Sub-environments with different spaces.",
                where=f"{where}, {kind}",
                got=space,
                expected=expected,
                fix="give every copy the same spaces; dynamics may differ",
            )
