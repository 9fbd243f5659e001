"""Whether replay buffers fit into the available memory."""

from __future__ import annotations

from collections.abc import Mapping

from rollax.core import memory
from rollax.core.memory import gib
from rollax.errors import ConfigError


def check_buffer_fits(capacity: int, bytes_per_transition: int, where: str) -> None:
    """Raises ConfigError if a replay buffer needs more than the available memory, and names the capacity that fits."""
    wanted, there = capacity * bytes_per_transition, memory.available_memory_bytes()
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
    wanted, there = sum(sizes.values()), memory.available_memory_bytes()
    if wanted > there:
        raise ConfigError.too_large(
            "The replay buffers together need",
            f"buffers of {list(sizes)}",
            f"{', '.join(gib(size) for size in sizes.values())}: {gib(wanted)} in all",
            gib(there),
        ).fix("lower buffer_size, or store each image of a stack once (frame_stack_axis)")
