"""Checks on results of environments: shapes of results, observations, rewards, flags, infos; notes are logged once.

Cheap checks run on all rows at once; only if one fails, the wrong row is searched for. In the first episode of each
sub-environment, observations are also checked one by one, with their bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from traceback import walk_tb
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled

from rollax.core import space_codec, trees
from rollax.core.numbers import sum_of_squares
from rollax.core.space_codec import Where, outline
from rollax.errors import INSTALLS, EnvError, RollaxError, missing_package, text_of

log = logging.getLogger("rollax.env")
BOOLEANS = {bool, np.bool_}
_DICT = {dict}
_said: set[tuple[str, str]] = set()
_collections: list[dict[tuple[str, str], str]] = []

_FLOAT64, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)
_LARGEST_REWARD = float(np.finfo(np.float32).max)
_LARGEST_SQUARE = _LARGEST_REWARD**2

NO_EPISODE = "an episode that is over or has not begun"
_AGENTS = "write an environment of several agents as a subclass of MultiAgentEnv"


def env_name(env: Any) -> str:
    """The name of an environment in error messages: its Gymnasium id, or else its class."""
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return spec_id or type(getattr(env, "as_written", getattr(env, "unwrapped", env))).__name__


def warn_once(topic: str, subject: str, message: str) -> None:
    """Logs a warning once for each topic and subject."""
    if _collections:
        _collections[-1].setdefault((topic, subject), message)
    elif (topic, subject) not in _said:
        _said.add((topic, subject))
        log.warning("%s", message)


@contextmanager
def collect_warnings() -> Iterator[dict[tuple[str, str], str]]:
    """Collects the warnings of `warn_once`, `(topic, subject)` -> message, instead of logging them."""
    warnings: dict[tuple[str, str], str] = {}
    _collections.append(warnings)
    try:
        yield warnings
    finally:
        _collections.pop()


stacked = partial(space_codec.stacked, note=warn_once)
as_columns = partial(space_codec.as_columns, note=warn_once)
check_bounds = partial(space_codec.check_bounds, note=warn_once)
check_observation = partial(space_codec.check_value, note=warn_once)


class ObservationChecks:
    """Checks observations of sub-environments: in bulk always, and in full in the first episode of each.

    A first episode is checked in full for at most a thousand polls.
    """

    MOST_POLLS = 1000

    def __init__(self, num_envs: int) -> None:
        self.first_episodes = set(range(num_envs))
        """The sub-environments that are checked in full."""
        self._polls = 0

    def polled(self, ended: Iterable[int]) -> None:
        """Counts a poll; the episode of the `ended` sub-environments is over."""
        if self.first_episodes:
            self._polls += 1
            self.first_episodes.difference_update(ended)
            if self._polls >= self.MOST_POLLS:
                self.first_episodes.clear()

    def columns(self, space: spaces.Space, obs: Any, count: int, where: Where) -> trees.Tree:
        """Columns of `count` rows from the environment, in NumPy; `EnvError` unless they belong to the space."""
        columns = as_columns(space, obs, count, where)
        if self.first_episodes:
            check_bounds(space, columns, where)
        return columns

    def stacked(self, space: spaces.Space, obs: Sequence[Any], env_index: np.ndarray, where: Where) -> trees.Tree:
        """Columns of single observations, one for each row; `env_index` holds the sub-environments of the rows."""
        if self.first_episodes:
            for row, index in enumerate(env_index.tolist()):
                if index in self.first_episodes:
                    check_observation(space, obs[row], where(row))
        return stacked(space, obs, where)


def check_reset(result: Any, where: str) -> tuple[Any, dict]:
    """Returns `(obs, info)`; `EnvError` if `reset` returned anything else."""
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], dict)):
        raise EnvError.not_returned("reset()", "(obs, info)", where, outline(result)).fix(
            "return obs, {}; if step returns 4 values, as in old Gym, change it too"
        )
    return result[0], result[1]


def check_step(result: Any, where: str, call: str = "step()") -> None:
    """Raises `EnvError` unless a step returned `(obs, reward, terminated, truncated, info)`."""
    if not (isinstance(result, tuple | list) and len(result) == 5):
        raise (
            EnvError.not_returned(call, "five values", where, outline(result))
            .fix("return terminated and truncated separately; if reset returns obs alone, as in old Gym, change it too")
            .expected("(obs, reward, terminated, truncated, info)")
        )


def vector_step(result: Any, count: int, where: str) -> Any:
    """The five parts of a vector step, with a reward and two flags for each sub-environment, or an error."""
    try:
        _, rewards, terminateds, truncateds, _ = result
        if len(rewards) == len(terminateds) == len(truncateds) == count:
            return result
    except (TypeError, ValueError):
        pass
    check_step(result, where)
    for what, part in zip(("rewards", "terminateds", "truncateds"), result[1:4], strict=True):
        check_count(what, part, count, where)
    return result


def check_infos(infos: Iterable[Any], where: Where) -> None:
    """Raises `EnvError` unless every info is a dict; all infos are checked at once."""
    if not _DICT.issuperset(map(type, infos)):
        for row, info in enumerate(infos):
            if not isinstance(info, dict):
                got = outline(info)
                raise EnvError("The info is not a dict.", where=where(row), got=got, expected="a dict", fix="return {}")


def check_count(what: str, values: Any, count: int, name: str) -> None:
    """Raises `EnvError` unless there are `count` values, one for each sub-environment."""
    found = len(values) if hasattr(values, "__len__") and not isinstance(values, dict) else None
    if found != count:
        expected = f"a list or array of {count}, one entry for each sub-environment"
        raise EnvError(
            f"The number of {what} is wrong.", name, outline(values) if found is None else f"{found} of them"
        ).expected(expected, f"return {what} for every sub-environment, in their order")


def reward_column(rewards: Any, where: Where) -> np.ndarray:
    """[N] float64 rewards; `EnvError` if a reward is not a real scalar, not finite, or too large for float32."""
    try:
        column = np.asarray(rewards)
    except Exception:  # the shapes differ, or a value of another library does not convert to a number
        column = None
    if column is None or column.ndim != 1 or column.dtype.kind not in "fiub":
        if len(rewards) == 0:
            return np.empty(0)
        row = next((i for i, value in enumerate(rewards) if not is_real(value)), 0)
        raise EnvError.is_not("The reward", "a real number", where(row), outline(rewards[row])).fix(
            _AGENTS if isinstance(rewards[row], dict) else "return float(reward)"
        )
    column = column.astype(_FLOAT64, copy=False)
    # As in `all_finite`, the sum of squares shows that all rewards are finite and small enough.
    if not sum_of_squares(column) <= _LARGEST_SQUARE:
        fits = np.abs(column) <= _LARGEST_REWARD
        if not fits.all():
            raise _not_a_reward(column, int(np.argmin(fits)), where)
    return column


def _not_a_reward(column: np.ndarray, row: int, where: Where) -> EnvError:
    finite = np.isfinite(column[row])
    what = "The reward is too large for float32." if finite else "The reward is NaN or infinite."
    expected = f"a finite float between -{_LARGEST_REWARD:.3g} and {_LARGEST_REWARD:.3g}"
    fix = "scale the rewards to about 1" if finite else "look in step() for a division by zero or a logarithm of 0"
    return EnvError(what, where(row), column[row].item(), expected=expected, fix=fix)


def flag_column(flags: Any, name: str, where: Where) -> np.ndarray:
    """[N] booleans; `EnvError` for a flag that is not a boolean."""
    try:
        column = np.asarray(flags)
    except Exception:  # the shapes differ, or a value of another library does not convert to a boolean
        column = None
    if column is None or column.dtype != _BOOL or column.ndim != 1:
        if len(flags) == 0:
            return np.empty(0, bool)
        row = next((i for i, flag in enumerate(flags) if not isinstance(flag, bool | np.bool_)), 0)
        raise not_boolean(name, flags[row], where(row))
    return column


def not_boolean(name: str, flag: Any, where: str) -> EnvError:
    return (
        EnvError.is_not(f"The {name} flag", "a boolean", where, outline(flag))
        .fix(_AGENTS if isinstance(flag, dict) else f"return bool({name})")
        .expected("True or False")
    )


def failed(error: BaseException, doing: str, where: str, action: Any = None) -> EnvError:
    """The EnvError to raise from an exception of user code; it names the sub-environment and the action."""
    wrapper = _wrapper_of(error)
    subject = "environment" if wrapper is None else f"wrapper {wrapper}"
    return EnvError(
        f"The {subject} raised {type(error).__name__} in {doing}: {text_of(error)}",
        where,
        "the traceback above" if action is None else f"action {action!r}; the traceback above",
    ).expected(f"{doing} to return", fix_of(error, subject))


@contextmanager
def failures_named(doing: str, where: str, action: Any = None) -> Iterator[None]:
    """A context in which an exception of user code becomes the error of `failed`; errors of rollax stay as they are."""
    try:
        yield
    except RollaxError:
        raise
    except Exception as error:
        raise failed(error, doing, where, action) from error


def _wrapper_of(error: BaseException) -> str | None:
    """The class of the wrapper whose own method raised; None if the environment inside raised, or a constructor."""
    innermost = None
    for frame, _ in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        is_env = all(hasattr(type(owner), method) for method in ("reset", "step"))
        if is_env and frame.f_code.co_name != "__init__":
            innermost = owner
    return type(innermost).__name__ if isinstance(innermost, gym.Wrapper) else None


def fix_of(error: BaseException, subject: str) -> str:
    """How to fix an exception of `subject`, the user's code: what to install, if a package is missing."""
    if not isinstance(error, ImportError | DependencyNotInstalled):
        return f"correct the {subject}"
    return INSTALLS.get(missing_of(error) or "", "install what the environment needs")


def missing_of(error: BaseException) -> str | None:
    """The package whose absence made an environment raise; None for other errors, and if no package is named."""
    cause = error.__cause__ if isinstance(error, DependencyNotInstalled) else error
    return missing_package(cause) if isinstance(cause, Exception) else None


def is_real(value: Any) -> bool:
    """Whether a value is a real number: a scalar, or an array without axes."""
    try:
        number = np.asarray(value)
    except Exception:
        return False
    return number.ndim == 0 and number.dtype.kind in "fiub"


def sum_of_rewards(rewards: Sequence[Any]) -> Any:
    """The sum as a float, or the first value that is not a real number, which is refused later.

    In the dtype of the rewards, the sum could overflow: -100 twice is 56 in int8.
    """
    unreal = [reward for reward in rewards if not is_real(reward)]
    return unreal[0] if unreal else sum(map(float, rewards))
