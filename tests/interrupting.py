"""Raises KeyboardInterrupt at a chosen line of rollax, as a signal may do at any line."""

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import rollax

_ROLLAX = str(Path(rollax.__file__).parent)


class Interrupts:
    """Counts the lines of rollax that a call executes in this thread, and raises KeyboardInterrupt before one of them.

    Args:
        under: a part of rollax, such as `replay`; all of it by default.
    """

    def __init__(self, under: str = "") -> None:
        self._under = str(Path(_ROLLAX, under))
        self._left = 0
        self.place = ""
        """File and line of the last interrupt."""

    def lines_of(self, call: Callable[[], Any]) -> int:
        """How many lines a call executes."""
        most = 10**12
        self.at(most, call)
        return most - self._left

    def at(self, line: int, call: Callable[[], Any]) -> bool:
        """Runs the call with an interrupt before its line number `line`, from 0. False if the call ends earlier."""
        self._left = line
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._traced if frame.f_code.co_filename.startswith(self._under) else None

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and not _is_with(frame):
            if self._left == 0:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self._left = -1
                raise KeyboardInterrupt
            self._left -= 1
        return self._traced


def _is_with(frame: FrameType) -> bool:
    """Whether a line is a `with` statement: also traced before its exit, where Python handles no signal."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
