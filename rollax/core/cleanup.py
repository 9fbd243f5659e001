"""`cleanup_on_error`: closes what was already created if a later step fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rollax.errors import text_of


@contextmanager
def cleanup_on_error(undo: Callable[[], Any]) -> Iterator[None]:
    """Calls `undo` if the block raises; the error of the block is raised, with a note if `undo` fails too."""
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as other:
            error.add_note(f"Closing what was made until then failed too: {type(other).__name__}: {text_of(other)}")
        raise
