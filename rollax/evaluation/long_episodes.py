"""`LongEpisodes`: a warning of an episode that may never end, where its end is waited for."""

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
        waits: a sentence that names what waits for the end of episodes.
    """

    def __init__(self, waits: str) -> None:
        self._waits = waits
        self._polls = 0
        self._has_warned = False

    def after_poll(self, lengths: Callable[[], NDArray]) -> None:
        """Counts a poll; `lengths` gives the steps of each sub-environment's running episode, 0 for one that rests."""
        self._polls += 1
        if self._has_warned or self._polls % _POLLS_BETWEEN_CHECKS:
            return
        longest = lengths()
        slot = int(longest.argmax())
        if longest[slot] >= _LONG_EPISODE:
            self._has_warned = True
            log.warning(
                "An episode has not ended after %d steps (sub-environment %d). %s If this one never ends, limit "
                "episodes: gym.make(..., max_episode_steps=...), or wrap the environment in "
                "gymnasium.wrappers.TimeLimit.",
                longest[slot],
                slot,
                self._waits,
            )
