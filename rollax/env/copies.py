"""Copies of one environment: making and closing them, and checking that their spaces are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym

from rollax.core.cleanup import cleanup_on_error
from rollax.core.spaces import check_space, same_space
from rollax.env import checks
from rollax.env.checks import env_name
from rollax.errors import EnvError, RollaxError, SpaceError


class Spaces(NamedTuple):
    """The spaces of each copy from the config; None for a space that the environment defines."""

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None


NO_SPACES = Spaces()


@dataclass(frozen=True, slots=True)
class EnvCopies:
    """Existing environments, and a function that makes the remaining ones.

    Args:
        existing: the first environments.
        make_env: makes the sub-environment of a vector index; None if all environments are in `existing`.
        num_envs: the total number.
        declared: the spaces from the config, for environments that have none before their first reset.
        restart_failed: recreate sub-environments that fail.
    """

    existing: Sequence[Any]
    make_env: Callable[[int], Any] | None = None
    num_envs: int = 1
    declared: Spaces = NO_SPACES
    restart_failed: bool = False

    def make_one(self, index: int) -> Any:
        """A new environment of this vector index."""
        if self.make_env is None:
            raise EnvError(
                "There are too few environments.",
                f"sub-environment {index}",
                f"{len(self.existing)} environments, no make_env",
            ).expected(f"{self.num_envs}", "pass make_env, a function of the vector index, or num_envs environments")
        return self.make_env(index)

    def make(self, *, may_lack_spaces: bool = False) -> list[Any]:
        """All environments; with `may_lack_spaces` a space may be None, as in multi-agent environments.

        Raises:
            EnvError: too few environments, an object that is not an environment, or the same environment twice.
            SpaceError: a missing or unsupported space, or copies whose spaces differ.
        """
        envs = list(self.existing)
        with cleanup_on_error(lambda: close_all(envs[len(self.existing) :])):
            while len(envs) < self.num_envs:
                envs.append(self.make_one(len(envs)))
            self._check(envs, may_lack_spaces=may_lack_spaces)
        return envs

    def _check(self, envs: Sequence[Any], *, may_lack_spaces: bool) -> None:
        for index, env in enumerate(envs):
            where = f"{env_name(env)}, sub-environment {index}"
            if not (hasattr(env, "reset") and hasattr(env, "step")):
                raise EnvError("This is not an environment.", where, env).expected(
                    "an object with reset and step", "return the env from its creator"
                )
            if any(env is other for other in envs[:index]):
                raise EnvError("The creator returned the same environment twice.", where, env).expected(
                    "one instance for each sub-environment", "make the env inside the creator function, not outside"
                )
            check_spaces(env, envs[0], where, may_lack_spaces=may_lack_spaces, declared=self.declared)

    def vector(self) -> Any:
        """The only environment, which has its own sub-environments."""
        (env,) = self.existing
        if self.restart_failed:
            name = type(env).__name__
            checks.warn_once(
                "restarts", name, f"{name} has its own sub-environments: one that fails cannot be recreated."
            )
        return env


class Resets:
    """Resets the copies of one environment in this process; their errors are raised."""

    def __init__(self, envs: list[Any]) -> None:
        self._envs = envs

    def reset(self, index: int, where: str, seed: int | None, **keywords: Any) -> Any:
        """The result of the reset of `envs[index]`.

        `where` is the name of the sub-environment in error messages; `keywords` are passed on together with the seed.
        """
        try:
            return self._envs[index].reset(seed=seed, **keywords)
        except Exception as error:
            self.failed(index, checks.failed(error, "reset()", where), error)

    def failed(self, index: int, error: EnvError, cause: Exception) -> None:
        """Raises `error`, unless the sub-environment is to be recreated.

        `cause` is the original exception. A `RollaxError` is always raised, because a new copy would raise it again.
        """
        if isinstance(cause, RollaxError):
            raise cause
        raise error from cause

    def stepped(self, indices: Iterable[int], ended: Iterable[int]) -> None:
        """Counts a step of these sub-environments; the episodes of the `ended` ones are over."""


def close_all(envs: Iterable[Any]) -> None:
    """Closes each environment; the first error is raised at the end, as an EnvError."""
    failure: EnvError | None = None
    for index, env in enumerate(envs):
        try:
            getattr(env, "close", lambda: None)()
        except Exception as error:
            if failure is None:
                failure = checks.failed(error, "close()", f"{env_name(env)}, sub-environment {index}")
                failure.__cause__ = error
    if failure is not None:
        raise failure


def space_of(env: Any, kind: str, declared: Spaces = NO_SPACES) -> Any:
    """The "observation_space" or "action_space" of an environment; the declared one if it has none."""
    space = getattr(env, kind, None)
    return getattr(declared, kind) if space is None else space


def check_spaces(
    env: Any, first: Any, where: str, *, may_lack_spaces: bool = False, declared: Spaces = NO_SPACES
) -> None:
    """Raises `SpaceError` if a copy's space is missing, unsupported, or differs from the first copy's space."""
    for kind in Spaces._fields:
        space, expected = space_of(env, kind, declared), space_of(first, kind, declared)
        if space is not None or not may_lack_spaces:
            check_space(space, f"{where}, {kind}")
        if space is not expected and (space is None or expected is None or not same_space(space, expected)):
            raise SpaceError("The sub-environments have different spaces.", f"{where}, {kind}", space).expected(
                expected, "return the same spaces in every copy; only dynamics may differ"
            )
