"""Checks of error messages."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollax import BaseEnv
from rollax.env.rows import Rows

FORM = re.compile(r"^\S.+\n  where:    .+\n  got:      .+\n  expected: .+\n  fix:  .+", re.DOTALL)


def raised(error: type[Exception], call: Callable, *arguments: Any, says: str = "", **named: Any) -> Exception:
    """The error of a call; its message matches `says`.

    Args:
        error: class of the error.
        call: the function, called with the arguments and the `named` ones.
        says: parts of the message in order, separated by `...`.
    """
    with pytest.raises(error) as caught:
        call(*arguments, **named)
    message = str(caught.value)
    wanted = ".*".join(map(re.escape, says.split("...")))
    assert re.search(wanted, message, re.DOTALL), f"{says!r} is not said by:\n{message}"
    return caught.value


def refused(error: type[Exception], call: Callable, *arguments: Any, says: str = "", **named: Any) -> Exception:
    """As `raised`; the message has the five parts (what, where, got, expected, fix)."""
    found = raised(error, call, *arguments, says=says, **named)
    assert FORM.match(str(found)), found
    return found


def play(base: BaseEnv, polls: int) -> Rows:
    """Resets and polls, always with action 0, and reads every observation."""
    rows = base.reset_rows(np.arange(base.num_envs))
    assert rows is not None
    rows.observations(None, base.observation_space)
    for _ in range(polls):
        acting = np.flatnonzero(rows.acts)
        if len(acting):
            base.send_rows(rows, acting, np.zeros(len(acting), np.int64))
        rows = base.poll_rows()
        rows.observations(np.flatnonzero(rows.observing()), base.observation_space)
        if len(rows.ended_envs):
            started = base.reset_rows(rows.ended_envs)
            if started is not None:
                started.observations(None, base.observation_space)
                rows = Rows.concat(rows, started)
    return rows
