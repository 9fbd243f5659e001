"""Several copies of one environment: made, and checked to be copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from rollax.errors import EnvError, SpaceError
from rollax.spaces import check_space, same_space

_KINDS = ("observation_space", "action_space")


class Spaces(NamedTuple):
    """The spaces of each copy, as the config has them; None where it leaves one to the environment."""

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None


NO_SPACES = Spaces()


def make_copies(
    existing: Sequence[Any],
    make_env: Callable[[int], Any] | None,
    num_envs: int,
    *,
    may_lack_spaces: bool = False,
    declared: Spaces = NO_SPACES,
) -> list[Any]:
    """The existing environments and as many from `make_env` as are missing.

    Args:
        existing: those that there are.
        make_env: makes the sub-environment of a vector index.
        num_envs: how many in all.
        may_lack_spaces: a space may be None, as those of multi-agent environments may.
        declared: what stands for a space that an environment does not know before its first reset.
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
                expected="an instance of its own for each sub-environment",
                fix="make the env inside of the creator function, not outside",
            )
        check_spaces(env, envs[0], where, may_lack_spaces=may_lack_spaces, declared=declared)
    return envs


def space_of(env: Any, kind: str, declared: Spaces = NO_SPACES) -> Any:
    """An environment's "observation_space" or "action_space"; the declared one where it has none."""
    space = getattr(env, kind, None)
    return getattr(declared, kind) if space is None else space


def env_name(env: Any) -> str:
    """What error messages call an environment: its Gymnasium id, else its class."""
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return spec_id or type(getattr(env, "as_written", getattr(env, "unwrapped", env))).__name__


def check_spaces(
    env: Any, first: Any, where: str, *, may_lack_spaces: bool = False, declared: Spaces = NO_SPACES
) -> None:
    """Whether a copy's spaces can be used, and are those of the first one.

    Raises:
        SpaceError: they cannot, or are not.
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
