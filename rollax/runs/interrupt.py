"""Ctrl-C during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopRequest:
    """Turns Ctrl-C (SIGINT) and SIGTERM into a flag that the training loop reads between iterations.

    An iteration is never interrupted, so the saved state can be trained further. A second signal raises
    KeyboardInterrupt at once.

    Args:
        announce: called from the signal handler on the first signal; must not block.
    """

    def __init__(self, announce: Callable[[], None]) -> None:
        self.signal: int | None = None
        self._announce = announce
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread receives signals and can set their handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._announce()
