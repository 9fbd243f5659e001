"""How much memory there is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_there() -> int:
    """Bytes of memory that this machine has, or the container's share of it where that is less."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # No file, or "max" in it: no limit.
    with suppress(OSError, ValueError):
        there = min(there, int(_CONTAINER_LIMIT.read_text()))
    return there


def gib(size: int) -> str:
    """A number of bytes as text."""
    return f"{size / 2**30:,.1f} GiB"
