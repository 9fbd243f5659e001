"""Checks on what environments return, observations apart: shapes of results, rewards, flags, infos.

Full checks run on each sub-environment's first episode, the cheap ones always: in bulk, over the columns of a poll.
Only when one fails is the culprit looked for among the rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rollax.errors import EnvError

log = logging.getLogger("rollax.env")
BOOLEANS = {bool, np.bool_}
_DICT = {dict}
_said: set[tuple[str, str]] = set()

_listeners: list[dict[tuple[str, str], str]] = []

_LARGEST_REWARD = float(np.finfo(np.float32).max)

Where = Callable[[int], str]
"""Names the place of a row in an error message."""


def say_once(topic: str, subject: str, message: str) -> None:
    """Logs a warning the first time that this topic comes up for this subject."""
    if _listeners:
        _listeners[-1].setdefault((topic, subject), message)
    elif (topic, subject) not in _said:
        _said.add((topic, subject))
        log.warning("%s", message)


@contextmanager
def overhear() -> Iterator[dict[tuple[str, str], str]]:
    """Gives what would be said once, `(topic, subject)` -> message, also what has been said; nothing is logged."""
    heard: dict[tuple[str, str], str] = {}
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.pop()


class FirstEpisodes:
    """Which sub-environments are still in their first episode, where everything is checked in full.

    An episode that does not end is watched for a thousand polls.

    Args:
        num_envs: how many there are.
    """

    MOST_POLLS = 1000

    def __init__(self, num_envs: int) -> None:
        self.indices = set(range(num_envs))
        self._polls = 0

    def polled(self, ended: Iterable[int]) -> None:
        """A poll is done, with which these sub-environments ended their episode."""
        self._polls += 1
        self.indices.difference_update(ended)
        if self._polls >= self.MOST_POLLS:
            self.indices.clear()


def check_reset(result: Any, where: str) -> tuple[Any, dict]:
    """`(obs, info)` as `reset` must return it."""
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], dict)):
        raise EnvError(
            "reset() did not return (obs, info).",
            where=where,
            got=outline(result),
            expected="a tuple of an observation and an info dict",
            fix="return obs, {} from reset; an env of the old interface is accepted whole, through its own adapter",
        )
    return result[0], result[1]


def check_step(result: Any, where: str, call: str = "step()") -> None:
    """Whether it is `(obs, reward, terminated, truncated, info)`, as `step` must return it."""
    if not (isinstance(result, tuple | list) and len(result) == 5):
        raise EnvError(
            f"{call} did not return five values.",
            where=where,
            got=outline(result),
            expected="(obs, reward, terminated, truncated, info)",
            fix="return terminated and truncated apart; a 4-tuple env must return reset() -> obs too to be adapted",
        )


def vector_step(result: Any, count: int, where: str) -> Any:
    """The five parts of a step of many, if they are five, with a reward and two flags for each sub-environment."""
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


def check_info(info: Any, where: str) -> None:
    """An info must be a dict."""
    if not isinstance(info, dict):
        raise EnvError("An info that is no dict.", where=where, got=outline(info), expected="a dict", fix="return {}")


def check_infos(infos: Iterable[Any], where: Where) -> None:
    """The same of many, in bulk."""
    if not _DICT.issuperset(map(type, infos)):
        for row, info in enumerate(infos):
            check_info(info, where(row))


def check_count(what: str, values: Any, count: int, name: str) -> None:
    """Whether there is one entry for each sub-environment."""
    found = len(values) if hasattr(values, "__len__") and not isinstance(values, dict) else None
    if found != count:
        raise EnvError(
            f"{what.capitalize()} of the wrong number.",
            where=name,
            got=outline(values) if found is None else f"{found} of them",
            expected=f"a list or array of {count}, one entry for each sub-environment",
            fix=f"return {what} for every sub-environment, in their order",
        )


def reward_column(rewards: Any, where: Where) -> np.ndarray:
    """[N] float64 rewards.

    Raises:
        EnvError: a reward that is no real scalar, not finite, or larger than float32 can hold.
    """
    try:
        column = np.asarray(rewards)
    except ValueError:  # of different shapes
        column = None
    if column is None or column.ndim != 1 or column.dtype.kind not in "fiub":
        if len(rewards) == 0:
            return np.empty(0)
        row = next((i for i, value in enumerate(rewards) if not _is_real(value)), 0)
        raise EnvError(
            "A reward that is no real number.",
            where=where(row),
            got=outline(rewards[row]),
            expected="a float",
            fix="return float(reward)",
        )
    column = column.astype(np.float64, copy=False)
    # As in `all_finite`: one number tells that all are finite and small enough.
    if not np.vdot(column, column) <= _LARGEST_REWARD**2:
        fits = np.abs(column) <= _LARGEST_REWARD
        if not fits.all():
            raise _not_a_reward(column, int(np.argmin(fits)), where)
    return column


def _not_a_reward(column: np.ndarray, row: int, where: Where) -> EnvError:
    finite = np.isfinite(column[row])
    return EnvError(
        "A reward that float32 cannot hold." if finite else "A NaN or infinite reward.",
        where=where(row),
        got=column[row].item(),
        expected=f"a float between -{_LARGEST_REWARD:.3g} and {_LARGEST_REWARD:.3g}" if finite else "a finite float",
        fix="scale the rewards: learning works best where they are around 1"
        if finite
        else "find what made it in the env's step(): a division by zero, a logarithm, a distance to nothing",
    )


def flag_column(flags: Any, name: str, where: Where) -> np.ndarray:
    """[N] booleans.

    Raises:
        EnvError: a flag that is not a boolean.
    """
    try:
        column = np.asarray(flags)
    except ValueError:  # of different shapes
        column = None
    if column is None or column.dtype != np.bool_ or column.ndim != 1:
        if len(flags) == 0:
            return np.empty(0, bool)
        row = next((i for i, flag in enumerate(flags) if not isinstance(flag, bool | np.bool_)), 0)
        raise not_boolean(name, flags[row], where(row))
    return column


def not_boolean(name: str, flag: Any, where: str) -> EnvError:
    """The error of a flag that is not a boolean."""
    return EnvError(
        f"A {name} flag that is not a boolean.",
        where=where,
        got=outline(flag),
        expected="True or False",
        fix=f"return bool({name})",
    )


def all_finite(values: np.ndarray) -> bool:
    """True where no element is NaN or infinite."""
    # A sum of squares is finite unless an element is not, or it overflows. BLAS needs no temporary array and warns not.
    flat = values.ravel()
    return math.isfinite(np.vdot(flat, flat)) or bool(np.isfinite(flat).all())


def failed(error: BaseException, doing: str, where: str, action: Any = None) -> EnvError:
    """The error to raise from one that user code raised: it names the sub-environment and the action taken."""
    return EnvError(
        f"The environment raised {type(error).__name__} in {doing}: {error}",
        where=where,
        got="the traceback above" if action is None else f"action {action!r}; the traceback above",
        expected=f"{doing} to return",
        fix="correct the environment",
    )


def outline(value: Any) -> str:
    """A value's type and, shortly, what is in it."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}: ({', '.join(type(part).__name__ for part in value)})"
    return f"{type(value).__name__}: {value!r}"


def _is_real(value: Any) -> bool:
    try:
        number = np.asarray(value)
    except ValueError:
        return False
    return number.ndim == 0 and number.dtype.kind in "fiub"
