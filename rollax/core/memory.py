"""The available memory, and whether arrays fit into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rollax.errors import ConfigError

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def available_memory_bytes() -> int:
    """Returns the memory of this machine in bytes, or the limit of the container if that is lower."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A missing file, or "max" in it, means no limit.
    with suppress(OSError, ValueError):
        there = min(there, int(_CONTAINER_LIMIT.read_text()))
    return there


def gib(size: int) -> str:
    return f"{size // 2**30:,} GiB" if size >= 2**60 else f"{size / 2**30:,.1f} GiB"  # an int may exceed all floats


def check_fits(what: str, wanted: int, where: str, fix: str) -> None:
    """Raises ConfigError if `wanted` bytes cannot fit into the memory."""
    there = available_memory_bytes()
    if wanted > there:
        raise ConfigError(
            f"{what} needs more memory than this machine has.",
            where=where,
            got=f"at least {gib(wanted)}",
            expected=f"less than {gib(there)}, the memory of this machine for all processes",
            fix=fix,
        )
