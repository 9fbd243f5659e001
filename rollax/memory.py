"""The available memory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_there() -> int:
    """Returns the memory of this machine in bytes, or the limit of the container if that is lower."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A missing file, or "max" in it, means no limit.
    with suppress(OSError, ValueError):
        there = min(there, int(_CONTAINER_LIMIT.read_text()))
    return there


def gib(size: int) -> str:
    """Returns a number of bytes as text."""
    return f"{size / 2**30:,.1f} GiB"
