"""Environments are closed after all failures: all of them at the end, and the ones made so far if making one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rollax.env import checks
from rollax.env.checks import env_name
from rollax.errors import EnvError


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


@contextmanager
def undone_on_failure(undo: Callable[[], Any]) -> Iterator[None]:
    """Calls `undo` if the block raises; the error of the block is raised, with a note if that fails too."""
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as other:
            error.add_note(f"Closing what was made until then failed too: {type(other).__name__}: {other}")
        raise
