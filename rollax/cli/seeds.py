"""`rollax train --seeds N`: the same run with several seeds, each in a run folder of its own.

Seeds of an environment in JAX train together in this process, others in processes of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import typer

from rollax.cli.console import MISSED_GOAL, SIGNALLED, search_current_folder
from rollax.cli.seeds_together import RunOfSeed, resumed, train_here
from rollax.core.atomic_files import read_regular, replace_file
from rollax.core.importing import JAX_ENV
from rollax.errors import ConfigError, RollaxError
from rollax.runs.comparison import compared_by, groups_of, table
from rollax.runs.display import shown_path
from rollax.runs.experiment import Experiment
from rollax.runs.interrupts import StopRequest
from rollax.runs.results import SEED_FOLDER, to_json
from rollax.runs.run_folder import check_empty, iteration_of, newest_saved
from rollax.runs.run_lock import RunLock
from rollax.runs.stopping import ended_by

SETTINGS_NAME = "seeds.json"
_MOST_BYTES = 1 << 24


def train_seeds(
    train: Callable[..., None],
    options: Mapping[str, Any],
    experiment: Experiment,
    folder: Path,
    seeds: Sequence[int],
    parallel: int | None,
    one: RunOfSeed,
) -> int:
    """Trains seeds in `folder`, and returns the exit code.

    Seeds that have ended are left as they are, and interrupted seeds continue from their newest checkpoints. After an
    error no further seed begins.

    Args:
        train: trains one seed, as `rollax train` does, and raises `typer.Exit`.
        options: arguments of `train`; each process gets its own seed and folder.
        experiment: algorithm, environment, config and stop conditions, the same for all seeds.
        folder: gets a run folder for each seed.
        seeds: the seeds.
        parallel: the number of processes at a time; None: one, or none if the seeds can train together in this process.
        one: how a seed trains in this process.
    Raises:
        ConfigError: the folder has other files or other settings, or another process writes into it.
    """
    with RunLock(folder, "--out") as lock, StopRequest() as request:
        folder = lock.folder
        _check_settings(folder, experiment)
        runs = {seed: folder / f"{SEED_FOLDER}{seed}" for seed in seeds}
        waiting = [seed for seed, run in runs.items() if not _has_ended(run, experiment)]
        in_jax, codes = isinstance(experiment.env, str) and experiment.env.startswith(JAX_ENV), None
        if parallel is None and in_jax and len(waiting) > 1:
            codes = train_here(one, {seed: runs[seed] for seed in waiting}, request, options)
        if codes is None:
            codes = _train_in_processes(train, options, runs, waiting, parallel or 1, request)
    if request.signal is not None:
        return SIGNALLED + request.signal
    if codes <= {0, MISSED_GOAL}:
        with suppress(RollaxError):  # no episode has ended
            groups = groups_of(list(runs.values()))
            print(table(groups, compared_by(groups)))
    return max(codes - {MISSED_GOAL}) or max(codes)


def _train_in_processes(
    train: Callable[..., None],
    options: Mapping[str, Any],
    runs: Mapping[int, Path],
    waiting: list[int],
    parallel: int,
    request: StopRequest,
) -> set[int]:
    """Trains the waiting seeds, and returns the exit codes."""
    running: dict[int, SpawnProcess] = {}
    codes = {0}
    try:
        while True:
            while waiting and len(running) < parallel and codes <= {0, MISSED_GOAL} and request.signal is None:
                seed = waiting.pop(0)
                print(f"Seed {seed}: {shown_path(runs[seed])}", flush=True)
                running[seed] = _started(train, {**options, "seed": seed}, runs[seed])
            if not running:
                return codes
            connection.wait([process.sentinel for process in running.values()], timeout=0.2)
            if request.signal is not None:
                _end(running)
            for seed, process in list(running.items()):
                if not process.is_alive():
                    codes.add(_code(running.pop(seed)))
    finally:
        _end(running)  # after an exception, such as a second signal


def refuse_seeds(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments of `train` that cannot be combined with `seeds`, or that require `seeds`."""
    if options["seeds"] is None:
        if options["parallel"] is not None:
            why = "there is only one run"
            raise ConfigError.no_effect("--parallel", why, "--parallel", options["parallel"]).fix("pass --seeds=N too")
        return
    if options["resume"] is not None or options["continue_for"] is not None:
        raise ConfigError("Several seeds cannot continue one run.", "--seeds, --resume", options["seeds"]).fix(
            "leave --resume out: the same command with the same --out continues interrupted seeds"
        )
    if any(text.startswith("seed=") for text in options["settings"] or ()) or '"seed"' in (options["config"] or ""):
        raise ConfigError.twice("The seed", "--seeds, and --set or --config", options["seeds"]).fix(
            "pass the first seed as --seed"
        )


def _check_settings(folder: Path, experiment: Experiment) -> None:
    """Stores the settings in a new folder, or compares them with the stored ones; stop conditions may differ."""
    config = {key: value for key, value in experiment.config.items() if key != "seed"}
    found = {"run": experiment.run, "env": experiment.env, "preset": experiment.preset, "config": config}
    settings = to_json(found, indent=2).encode() + b"\n"
    path = folder / SETTINGS_NAME
    if not path.exists():
        check_empty(folder, "--out", "", held=True)
        replace_file(path, settings)
    elif read_regular(path, _MOST_BYTES) != settings:
        raise ConfigError("The folder has runs of other settings.", "--out", str(folder)).expected(
            f"the algorithm, environment and config of {path}", "choose another folder"
        )


def _has_ended(run: Path, experiment: Experiment) -> bool:
    newest = newest_saved(run)
    return newest is not None and ended_by(run, iteration_of(newest), experiment.stop) is not None


def _started(train: Callable[..., None], options: Mapping[str, Any], run: Path) -> SpawnProcess:
    if (resume := resumed(run)) is not None:
        options = {**options, "resume": resume, "preset": None}  # the checkpoint has the keys of the preset
    process = get_context("spawn").Process(target=_train, args=(train, {**options, "out": run}))
    process.start()
    return process


def _train(train: Callable[..., None], options: Mapping[str, Any]) -> None:
    """Trains one seed in a new process, which gets signals from its parent process only."""
    os.setpgrp()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    search_current_folder()
    try:
        train(**options)
    except typer.Exit as end:
        sys.exit(end.exit_code)


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


def _end(running: Mapping[int, SpawnProcess]) -> None:
    """Sends SIGTERM to the processes, which then save and end, and waits for them."""
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.join()
