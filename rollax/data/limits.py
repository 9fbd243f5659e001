"""The limit on the memory of a decoded part of a file."""

from __future__ import annotations

from pathlib import Path

from rollax.errors import DatasetError
from rollax.memory import gib

MAX_DECODED_GB = 4.0
"""Default of `max_decoded_gb`: the maximum GiB of a decoded row group, episode or array of a file."""


def check_decoded(size: float, max_gb: float, where: str | Path) -> None:
    """Raises DatasetError if `size` bytes exceed the limit of a part of a file."""
    if size > max_gb * 2**30:
        raise DatasetError(
            "The decoded data needs too much memory.",
            where=where,
            got=f"at least {gib(int(size))}",
            expected=f"at most {gib(int(max_gb * 2**30))}, the setting max_decoded_gb",
            fix="if you trust the source of the file, raise the setting max_decoded_gb",
        )
