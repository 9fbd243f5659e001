"""Seeds that train together in one process, for `rollax train --seeds`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rollax.cli.console import MISSED_GOAL
from rollax.runs.interrupts import StopRequest
from rollax.runs.run_folder import newest_saved
from rollax.runs.run_lock import refuse_used

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.runs.fit import FitResult

_LINES_EVERY_S = 10.0


class RunOfSeed(Protocol):
    """How a seed trains in this process, with the options of `rollax train`."""

    def make(self, seed: int, resume: Path | None) -> Trainer:
        """Returns the trainer of a seed, new or restored."""
        ...

    def fit(self, trainer: Trainer, run: Path, resume: Path | None) -> FitResult:
        """Trains into a run folder."""
        ...


def resumed(run: Path) -> Path | None:
    """Returns the run folder if it has a checkpoint to continue from; else the folder is removed, if there is one."""
    if newest_saved(run) is not None:
        return run
    if run.exists():  # the run was interrupted before its first checkpoint
        refuse_used(run, "--out")
        shutil.rmtree(run)
    return None


def train_here(
    one: RunOfSeed, runs: Mapping[int, Path], request: StopRequest, options: Mapping[str, Any]
) -> set[int] | None:
    """Trains seeds in their run folders, in threads of this process, and returns the exit codes.

    Returns None, and trains nothing, if the steps of a run are not compiled.

    Args:
        one: how a seed trains.
        runs: seed -> run folder; runs with a checkpoint go on.
        request: the request to stop, which running seeds then follow too.
        options: those of `rollax train`.
    Raises:
        Exception: the first error of a seed; no further seed has begun after it.
    """
    from rollax.many.together import is_compiled, train_together  # loaded only where it is used

    seeds, resume = list(runs), {seed: resumed(run) for seed, run in runs.items()}
    first = one.make(seeds[0], resume[seeds[0]])
    if not is_compiled(first):
        first.stop()
        return None
    progress = _Progress(len(seeds), quiet=options["quiet"])
    codes, failed = {0}, list[BaseException]()

    @contextmanager
    def noting_errors() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            failed.append(error)
            raise

    def make(number: int) -> Trainer:
        if failed or request.signal is not None:
            raise _NotBegunError
        with noting_errors():
            trainer = first if number == 0 else one.make(seeds[number], resume[seeds[number]])
        progress.begun(seeds[number], trainer)
        return trainer

    def run(number: int, trainer: Trainer) -> None:
        if failed or request.signal is not None:
            return
        seed = seeds[number]
        with noting_errors():
            fitted = one.fit(trainer, runs[seed], resume[seed])
        progress.ended(seed, fitted)
        if options["must_reach"] and fitted.missed_goal:
            codes.add(MISSED_GOAL)

    def watch() -> None:
        if request.signal is not None:
            StopRequest.forward(request.signal)
        progress.show()

    train_together(make, len(seeds), run, watch=watch)
    if failed:
        raise failed[0]
    return codes


class _NotBegunError(Exception):
    """A seed does not begin, after an error of another one or a signal."""


class _Progress:
    """Lines about all seeds, and one for each that has ended."""

    def __init__(self, seeds: int, *, quiet: bool) -> None:
        self._seeds, self._quiet = seeds, quiet
        self._running: dict[int, tuple[Trainer, int]] = {}  # with the steps of the run before
        self._ended = self._steps = 0  # the seeds that have ended, and their steps
        self._before = time.monotonic(), 0

    def begun(self, seed: int, trainer: Trainer) -> None:
        """Counts the steps of a seed from now on."""
        self._running[seed] = trainer, trainer.optimizer.env_steps

    def ended(self, seed: int, fitted: FitResult) -> None:
        """Shows the outcome of a seed."""
        trainer, before = self._running.pop(seed)
        self._ended, self._steps = self._ended + 1, self._steps + trainer.optimizer.env_steps - before
        if not self._quiet:
            last = fitted.last
            greedy = "" if last["evaluation"] is None else f", greedy {last['evaluation']['episode_reward_mean']:.2f}"
            mean = last["episode_reward_mean"]
            reward = "no episode has ended" if mean is None else f"reward {mean:.2f}"
            print(f"Seed {seed}: {last['timesteps_total']:,} steps, {reward}{greedy}", flush=True)

    def show(self) -> None:
        """Shows how far all seeds are, every few seconds."""
        now = time.monotonic()
        if self._quiet or now - self._before[0] < _LINES_EVERY_S:
            return
        running = list(self._running.values())
        steps = self._steps + sum(trainer.optimizer.env_steps - before for trainer, before in running)
        (before, steps_before), self._before = self._before, (now, steps)
        rate = (steps - steps_before) / (now - before)
        print(f"{self._ended} of {self._seeds} seeds ended, {steps:,} steps, {rate:,.0f} steps/s", flush=True)
