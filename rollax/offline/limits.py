"""The limit on the memory of a decoded part of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, AnyStr

from rollax.core.memory import gib
from rollax.errors import DatasetError

MAX_DECODED_GB = 4.0
"""Default of `max_decoded_gb`: the maximum GiB of a decoded row group, episode or array of a file."""

LONGEST_LINE = 1 << 30
"""The maximum length of a line of a file of text."""


def lines_of(file: IO[AnyStr], where: str | Path) -> Iterator[AnyStr]:
    """The lines of an open file; DatasetError if a line is too long, as in a file without line breaks."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise DatasetError("A line is too long.", where, f"more than {gib(LONGEST_LINE)}").expected(
                "a line of text for each episode, batch or step",
                "divide it, use another copy of the file, or skip broken lines with max_broken",
            )
        yield line


def check_decoded(size: float, max_gb: float, where: str | Path) -> None:
    """Raises DatasetError if `size` bytes exceed the limit of a part of a file."""
    if size > max_gb * 2**30:
        raise DatasetError("The decoded data needs too much memory.", where, f"at least {gib(int(size))}").expected(
            f"at most {gib(int(max_gb * 2**30))}, the setting max_decoded_gb",
            "if you trust the source of the file, raise the setting max_decoded_gb",
        )
