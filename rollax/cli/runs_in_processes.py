"""Many runs, each in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from typing import Any

import typer

from rollax.cli.console import MISSED_GOAL, SIGNALLED, USER_ERROR, search_current_folder
from rollax.cli.planned_runs import Outcome, PlannedRun, resumed
from rollax.errors import NonFiniteError
from rollax.runs.display import shown_path
from rollax.runs.interrupts import StopRequest

_NOT_FINITE = 4
"""The exit code of a process whose run has numbers that are not finite."""


def train_in_processes(
    train: Callable[..., None],
    options: Mapping[str, Any],
    runs: Sequence[PlannedRun],
    parallel: int,
    request: StopRequest,
    watch: Callable[[], None],
) -> Outcome:
    """Trains runs, and returns their outcome.

    Args:
        train: trains one run, as `rollax train` does, and raises `typer.Exit`.
        options: arguments of `train`; each process gets the seed, the setting and the folder of its run.
        runs: the runs; runs with a checkpoint continue.
        parallel: the number of processes at a time.
        request: the request to stop. After a signal the processes save their runs and end.
        watch: called about five times a second.
    """
    waiting, running, outcome = list(runs), dict[PlannedRun, SpawnProcess](), Outcome()
    try:
        while True:
            while waiting and len(running) < parallel and outcome.goes_on and request.signal is None:
                run = waiting.pop(0)
                if run.setting not in outcome.diverged:
                    print(f"{run.label}: {shown_path(run.folder)}", flush=True)
                    running[run] = _started(train, options, run)
            if not running:
                return outcome
            connection.wait([process.sentinel for process in running.values()], timeout=0.2)
            if request.signal is not None:
                _end(running)
            for run, process in list(running.items()):
                if not process.is_alive():
                    code = _code(running.pop(run))
                    if code not in (0, MISSED_GOAL) and request.signal is None:
                        print(f"{run.label}: {_how_it_failed(code)}", file=sys.stderr, flush=True)
                    if code != _NOT_FINITE:
                        outcome.codes.add(code)
                    elif run.setting.values:
                        outcome.diverged.add(run.setting)
                    else:
                        outcome.codes.add(USER_ERROR)
            watch()
    finally:
        _end(running)  # after an exception, such as a second signal


def _started(train: Callable[..., None], options: Mapping[str, Any], run: PlannedRun) -> SpawnProcess:
    settings = [*(options["settings"] or ()), *run.setting.texts]
    options = {**options, "seed": run.seed, "settings": settings, "out": run.folder}
    if (resume := resumed(run.folder)) is not None:
        options |= {"resume": resume, "preset": None}  # the checkpoint has the keys of the preset
    process = get_context("spawn").Process(target=_train, args=(train, options))
    process.start()
    return process


def _train(train: Callable[..., None], options: Mapping[str, Any]) -> None:
    """Trains one run in a new process, which gets signals from its parent process only."""
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    search_current_folder()
    try:
        train(**options)
    except typer.Exit as end:
        sys.exit(_NOT_FINITE if isinstance(end.__cause__, NonFiniteError) else end.exit_code)


def _end_with_parent() -> None:
    """Waits for the end of the parent process, and then ends this process, which saves its run."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _code(process: SpawnProcess) -> int:
    process.join()
    code = process.exitcode or 0
    return SIGNALLED - code if code < 0 else code


def _how_it_failed(code: int) -> str:
    """A text for the exit code of a process, which has printed its error, unless a signal ended it."""
    if code == _NOT_FINITE:
        return "numbers are not finite"
    if code > SIGNALLED:
        return f"signal {code - SIGNALLED} ended its process; signal 9 that nobody sent often means too little memory"
    return f"failed, with exit code {code}"


def _end(running: Mapping[PlannedRun, SpawnProcess]) -> None:
    """Sends SIGTERM to the processes, which then save and end, and waits for them."""
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.join()
