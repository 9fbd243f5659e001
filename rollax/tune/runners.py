"""Where trials run: in this process, one at a time, or in several processes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing import Pipe, connection, get_context
from multiprocessing.connection import Connection
from typing import Any

from rollax.env.registrations import Registrations, register_all, registrations
from rollax.errors import ConfigError
from rollax.tune.trial import Failed, Message, Scored, Task, Trained, run_trial

_WAIT_S = 0.2


class InThisProcess:
    """Runs one trial at a time in this process. A context manager that ends a running trial on exit."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._trial: tuple[int, Iterator[Message]] | None = None

    @property
    def free(self) -> int:
        """How many further trials can begin."""
        return int(self._trial is None)

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def begin(self, number: int, config: Mapping[str, Any]) -> None:
        """Begins the trial with this number."""
        self._trial = number, run_trial(self._task, config)

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Returns the next messages of trials, possibly none; after each `Scored` the caller calls `go_on`."""
        if self._trial is not None:
            number, trial = self._trial
            message = next(trial)
            if isinstance(message, Trained | Failed):
                self._end()
            yield number, message

    def go_on(self, number: int, wanted: bool) -> None:
        """Continues a trial after its `Scored`, or ends it."""
        if not wanted:
            self._end()

    def _end(self) -> None:
        if self._trial is not None:
            close: Any = self._trial[1]
            self._trial = None
            close.close()  # stops the trainers


class InProcesses:
    """Runs trials as `InThisProcess`, but several at a time, in processes that run one trial after another.

    The end of a process, such as by a lack of memory, is a failure of its trial; the next trial gets a new process.

    Raises:
        ConfigError: the task cannot be sent to a process.
    """

    def __init__(self, task: Task, jobs: int) -> None:
        try:
            pickle.dumps(task)
        except Exception as error:
            raise ConfigError("The settings cannot be sent to other processes.", "jobs", f"{jobs} ({error})").expected(
                "classes and functions at the top level of a module", "move them there, or leave jobs out"
            ) from error
        self._task, self._registered = task, registrations(pickle.dumps)
        self._jobs = jobs
        self._idle: list[_Process] = []
        self._busy: dict[int, _Process] = {}

    @property
    def free(self) -> int:
        return self._jobs - len(self._busy)

    def __enter__(self) -> InProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*self._idle, *self._busy.values()]:
            process.end()

    def begin(self, number: int, config: Mapping[str, Any]) -> None:
        process = self._idle.pop() if self._idle else _Process(self._task, self._registered)
        self._busy[number] = process
        process.send(config)

    def messages(self) -> Iterator[tuple[int, Message]]:
        ready = connection.wait([process.pipe for process in self._busy.values()], _WAIT_S)
        for number, process in list(self._busy.items()):
            if process.pipe not in ready:
                continue
            try:
                message: Message = process.pipe.recv()
            except (EOFError, OSError):
                del self._busy[number]
                yield number, Failed(f"its process ended with exit code {process.end()}", by_settings=False)
                continue
            if isinstance(message, Trained | Failed):
                self._idle.append(self._busy.pop(number))
            yield number, message

    def go_on(self, number: int, wanted: bool) -> None:
        self._busy[number].send(wanted)
        if not wanted:
            self._idle.append(self._busy.pop(number))


Runner = InThisProcess | InProcesses


class _Process:
    """A process, and this end of its pipe."""

    def __init__(self, task: Task, registered: Registrations) -> None:
        self.pipe, other = Pipe()
        self._process = get_context("spawn").Process(target=_run_trials, args=(other, task, registered))
        self._process.start()
        other.close()  # so that the end of the process is the end of the pipe

    def send(self, value: Any) -> None:
        with suppress(OSError):  # it has ended, which `messages` reports
            self.pipe.send(value)

    def end(self) -> int | None:
        """Ends the process, and returns its exit code; negative for a signal."""
        self.pipe.close()
        self._process.join(_WAIT_S)
        self._process.terminate()
        self._process.join()
        return self._process.exitcode


def _run_trials(pipe: Connection, task: Task, registered: Registrations) -> None:
    """Runs trials in a new process until the pipe is closed. Ctrl-C does not reach its process group."""
    os.setpgrp()
    register_all(registered)
    with suppress(EOFError, OSError):
        while True:
            for message in run_trial(task, pipe.recv()):
                if message is not None:
                    pipe.send(message)
                if isinstance(message, Scored) and not pipe.recv():
                    break
