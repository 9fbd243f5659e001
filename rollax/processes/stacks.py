"""Python stacks of processes on this machine: written when they crash or a call takes too long, and read here."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import shutil
import sysconfig
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

_HERE = str(Path(__file__).parents[1])  # the folder of rollax
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SHOWN = 3  # frames in a message
_LONGEST_S = 1e6  # `faulthandler` refuses a time that the clock cannot represent
_THREAD = re.compile(r"^.*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\S+) in (.*)$', re.MULTILINE)
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)


class StackFolder:
    """A new folder with a file for each actor, which is removed with this object or when this process ends."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rollax-stacks-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def path(self, index: int) -> str:
        """The file for the process of an actor, for `StackWriter`."""
        return os.path.join(self._folder, f"{index}.txt")

    def stack_of(self, index: int) -> Stack | None:
        """The stack that the last process of an actor wrote; None if it is on another machine or wrote none."""
        try:
            return Stack.of(Path(self.path(index)).read_text(errors="replace"))
        except OSError:
            return None


class StackWriter:
    """Writes the stacks of this process into a file: when it crashes, and when a call exits or takes too long.

    It writes nothing if the folder does not exist, because the process runs on another machine.
    """

    def __init__(self, path: str) -> None:
        self._file = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            faulthandler.enable(self._file)
        self._thread = threading.get_ident()  # the timer of `faulthandler` is one for all threads
        self._waits = False

    @contextlib.contextmanager
    def call(self, after_s: float) -> Iterator[None]:
        """Context of a call; those inside it have no time limits of their own."""
        if self._file is None or self._waits or threading.get_ident() != self._thread:
            yield
            return
        self._waits, exiting = True, None
        if after_s < _LONGEST_S:
            faulthandler.dump_traceback_later(after_s, file=self._file)
        try:
            yield
        except SystemExit as error:  # ends the process, without a word about the place
            exiting = error
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._waits = False
            if os.fstat(self._file).st_size:  # it was late, but has not hung
                os.ftruncate(self._file, 0)
            if exiting is not None:
                os.write(self._file, _dump_of(exiting).encode(errors="replace"))


def _dump_of(error: BaseException) -> str:
    """The text that `faulthandler` would write where the error was raised."""
    frames = [f'  File "{f.filename}", line {f.lineno} in {f.name}' for f in traceback.extract_tb(error.__traceback__)]
    return "\n".join([f"Fatal Python error: {error!r}", "", "Current thread (most recent call first):", *frames[::-1]])


def watched(cls: type, context: Callable[[Any, str], contextlib.AbstractContextManager[Any]]) -> None:
    """Makes the public methods of a class run in `context(self, name)`."""

    def wrapped(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with context(self, name):
                return method(self, *args, **kwargs)

        return call

    for name in dir(cls):
        method = getattr(cls, name)
        if not name.startswith("_") and type(method) is type(watched):
            setattr(cls, name, wrapped(name, method))


class _Frame(NamedTuple):
    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.function}() ({self.file}, line {self.line})"

    @property
    def of_rollax(self) -> bool:
        return self.file.startswith(_HERE + os.sep)

    @property
    def of_libraries(self) -> bool:
        return self.file.startswith("<") or self.file.startswith(_LIBRARIES)


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of the thread that ran a call in another process.

    Attributes:
        text: the whole stack, innermost frame first.
        place: its innermost frames of the user's code, in one line.
        reason: the fatal error of the process; empty if it only took too long.
    """

    text: str
    place: str
    reason: str

    @classmethod
    def of(cls, dump: str) -> Stack | None:
        """Reads what `faulthandler` wrote; None without a thread that crashed or runs code of rollax."""
        if fatal := _FATAL.search(dump):
            dump = dump[fatal.end() :]
        heads = list(_THREAD.finditer(dump))
        ends = [*(head.start() for head in heads), len(dump)][1:]
        threads = []
        for head, end in zip(heads, ends, strict=True):
            found = list(_FRAME.finditer(dump, head.end(), end))
            frames = [_Frame(*frame.groups()) for frame in found]
            crashed = bool(fatal) and head[0].startswith(("Current thread", "Stack"))
            if frames and (crashed or any(frame.of_rollax for frame in frames)):
                called = list(takewhile(lambda frame: not frame.of_rollax, frames))
                users = [frame for frame in called if not frame.of_libraries]
                place = ", called by ".join(map(str, (users or called or frames)[:_SHOWN]))
                text = "\n".join([head[0], *(frame[0] for frame in found)])
                # Of a worker's threads, one waits for the other, which runs the environment.
                threads.append(((crashed, bool(users)), cls(text, place, fatal[1] if fatal else "")))
        return max(threads, key=lambda thread: thread[0])[1] if threads else None
