"""Python stacks of processes on this machine: written when they crash or a call takes too long, and read here."""

from __future__ import annotations

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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from rollax.errors import repr_of

_HERE = str(Path(__file__).parents[1])  # the folder of rollax
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SHOWN = 3  # frames in a message
_SHORTEST_S, _LONGEST_S = 1e-3, 1e6  # `faulthandler` refuses times that its clock cannot represent
_THREAD = re.compile(r"^.*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\S+) in (.*)$', re.MULTILINE)
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)


class StackFolder:
    """A new folder with a file for each actor; the folder is removed with this object or when this process ends."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="rollax-stacks-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def file(self, index: int, timeout_s: float, start_timeout_s: float) -> StackFile:
        """The file of an actor, as the argument `stacks` of its class."""
        return StackFile(self._path(index), timeout_s, start_timeout_s)

    def stack_of(self, index: int) -> Stack | None:
        """The stack that the last process of an actor wrote; None if it is on another machine or wrote none."""
        try:
            return Stack.of(Path(self._path(index)).read_text("utf-8", errors="replace"))
        except OSError:
            return None

    def _path(self, index: int) -> str:
        return os.path.join(self._folder, f"{index}.txt")


class StackFile(NamedTuple):
    """The file for the stacks of an actor, and its time limits in seconds."""

    path: str
    timeout_s: float
    start_timeout_s: float

    def after_s(self, method: str) -> float:
        """The seconds after which a call that still runs writes its stack, before the pool counts the actor as hung."""
        # The limit of a start includes the start of the process, which may take long.
        return 0.5 * self.start_timeout_s if method == "make" else 0.9 * self.timeout_s


class StackWriter:
    """Writes the stacks of this process into a file: when it crashes, and when a call takes too long or calls sys.exit.

    It writes nothing if the folder does not exist: the process then runs on another machine.
    """

    def __init__(self, stacks: StackFile) -> None:
        self._stacks = stacks
        self._file = None
        with suppress(OSError):
            self._file = os.open(stacks.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            faulthandler.enable(self._file)
        self._thread = threading.get_ident()  # `faulthandler` has one timer for all threads
        self._waits = False

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Context of a call of a method; calls inside it have no time limits of their own."""
        if self._file is None or self._waits or threading.get_ident() != self._thread:
            yield
            return
        self._waits, exiting = True, None
        if _SHORTEST_S < (after_s := self._stacks.after_s(method)) < _LONGEST_S:
            faulthandler.dump_traceback_later(after_s, file=self._file)
        try:
            yield
        except SystemExit as error:  # ends the process without a traceback
            exiting = error
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._waits = False
            if os.fstat(self._file).st_size:  # the call was late, but has not hung
                os.ftruncate(self._file, 0)
            if exiting is not None:
                with suppress(OSError):
                    os.write(self._file, _dump_of(exiting).encode(errors="replace"))


def _dump_of(error: BaseException) -> str:
    """The text that `faulthandler` would write where the error was raised."""
    frames = [f'  File "{f.filename}", line {f.lineno} in {f.name}' for f in traceback.extract_tb(error.__traceback__)]
    return "\n".join(
        [f"Fatal Python error: {repr_of(error)}", "", "Current thread (most recent call first):", *frames[::-1]]
    )


def writing_stacks(cls: type) -> type:
    """A subclass of an actor's class; with the argument `stacks`, a `StackFile`, the process writes its stacks."""

    class Writing(cls):
        def __init__(self, *args: Any, stacks: StackFile | None = None, **kwargs: Any) -> None:
            self._stack_writer = None if stacks is None else StackWriter(stacks)
            super().__init__(*args, **kwargs)

    for name in dir(Writing):
        method = getattr(Writing, name)
        if not name.startswith("_") and isinstance(method, FunctionType):
            setattr(Writing, name, _writing(method))
    Writing.__name__, Writing.__qualname__ = cls.__name__, cls.__qualname__
    return Writing


def _writing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        writer = getattr(self, "_stack_writer", None)  # Ray calls methods even if __init__ did not run
        with nullcontext() if writer is None else writer.call(method.__name__):
            return method(self, *args, **kwargs)

    return call


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
        place: the innermost frames of the user's code, in one line.
        reason: the fatal error of the process; empty if a call only took too long.
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
