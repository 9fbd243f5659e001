"""The available memory, and whether replay buffers fit into it."""

from __future__ import annotations

import os
from collections.abc import Mapping
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


def check_buffer_fits(capacity: int, bytes_per_transition: int, where: str) -> None:
    """Raises ConfigError if a replay buffer needs more than the available memory, and names the capacity that fits."""
    wanted, there = capacity * bytes_per_transition, available_memory_bytes()
    if wanted > there:
        raise ConfigError.too_large(
            "The replay buffer needs",
            f"capacity of {where}",
            f"{capacity:,} transitions of {bytes_per_transition:,} bytes: {gib(wanted)}",
            gib(there),
        ).fix(
            f"set a capacity (config key 'buffer_size') well below {there // bytes_per_transition:,}, or store each "
            "image of a stack once (config key 'frame_stack_axis', frames=StackedFrames(...))"
        )


def check_buffers_fit(sizes: Mapping[str, int]) -> None:
    """Raises ConfigError if full replay buffers (name -> bytes) together need more memory than available."""
    wanted, there = sum(sizes.values()), available_memory_bytes()
    if wanted > there:
        raise ConfigError.too_large(
            "The replay buffers together need",
            f"buffers of {list(sizes)}",
            f"{', '.join(gib(size) for size in sizes.values())}: {gib(wanted)} in all",
            gib(there),
        ).fix("lower buffer_size, or store each image of a stack once (frame_stack_axis)")
