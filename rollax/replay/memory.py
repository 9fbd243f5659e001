"""Checks that a replay buffer fits into memory, before any is allocated."""

from __future__ import annotations

from collections.abc import Mapping

from rollax.errors import ConfigError
from rollax.memory import gib, memory_there


def check_fits(capacity: int, bytes_per_transition: int, where: str) -> None:
    """Refuses a capacity that needs more memory than there is.

    Args:
        capacity: transitions.
        bytes_per_transition: memory of each, bookkeeping included.
        where: the buffer's name.
    Raises:
        ConfigError: they do not fit; it names the capacity that would.
    """
    wanted, there = capacity * bytes_per_transition, memory_there()
    if wanted > there:
        raise ConfigError(
            "The replay buffer would need more memory than there is.",
            where=f"capacity of {where}",
            got=f"{capacity:,} transitions of {bytes_per_transition:,} bytes: {gib(wanted)}",
            expected=f"at most {gib(there)}, all the memory there is, for everything",
            fix=f"set a capacity (config key 'buffer_size') well below {there // bytes_per_transition:,}, or keep "
            "stacked images once (frames=StackedFrames(...), config key 'frame_stack_axis')",
        )


def check_fit_together(sizes: Mapping[str, int]) -> None:
    """Refuses buffers that each fit into memory, but not all together.

    Args:
        sizes: buffer -> its bytes when it is full.
    Raises:
        ConfigError: they do not fit.
    """
    wanted, there = sum(sizes.values()), memory_there()
    if wanted > there:
        raise ConfigError(
            "The replay buffers would together need more memory than there is.",
            where=f"buffers of {list(sizes)}",
            got=f"{', '.join(gib(size) for size in sizes.values())}: {gib(wanted)} in all",
            expected=f"at most {gib(there)}, all the memory there is, for everything",
            fix="lower buffer_size, or keep stacked images once (frame_stack_axis)",
        )
