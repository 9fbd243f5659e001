"""`LongEpisodes`: a warning of episodes that may never end, for code that waits for their ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from numpy.typing import NDArray

log = logging.getLogger("rollax.sampling")
_LONG_EPISODE = 100_000  # steps
_POLLS_BETWEEN_CHECKS = 1000


class LongEpisodes:
    """Warns once if a running episode is very long.

    Args:
        waits: a sentence about the code that waits for the ends of episodes.
    """

    def __init__(self, waits: str) -> None:
        self._waits = waits
        self._polls = 0
        self._has_warned = False

    def after_poll(self, lengths: Callable[[], NDArray]) -> None:
        """Counts a poll; `lengths` returns the steps of each sub-environment's running episode, 0 without one."""
        self._polls += 1
        if self._has_warned or self._polls % _POLLS_BETWEEN_CHECKS:
            return
        longest = lengths()
        slot = int(longest.argmax())
        if longest[slot] >= _LONG_EPISODE:
            self._has_warned = True
            log.warning(
                "An episode has not ended after %d steps (sub-environment %d). %s If it never ends, limit its "
                "length: gymnasium.make(..., max_episode_steps=...), or wrap the environment in "
                "gymnasium.wrappers.TimeLimit.",
                longest[slot],
                slot,
                self._waits,
            )
