"""Many runs that train together in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rollax.cli.console import MISSED_GOAL
from rollax.cli.planned_runs import Outcome, PlannedRun, Training, resumed
from rollax.errors import NonFiniteError
from rollax.runs.interrupts import Interrupted, StopRequest

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.runs.fit import FitResult

_LINES_EVERY_S = 10.0


def train_here(
    training: Training,
    runs: Sequence[PlannedRun],
    stop: Mapping[str, float],
    request: StopRequest,
    options: Mapping[str, Any],
    watch: Callable[[], None],
) -> Outcome | None:
    """Trains runs in threads of this process, and returns their outcome.

    Runs share compiled functions if their settings differ only in numbers that are arguments of these functions.
    Groups of runs that differ in other numbers, such as `gamma`, train one after another.

    Returns None, and trains nothing, if the steps of a run are not compiled.

    Args:
        training: how a run trains.
        runs: the runs; runs with a checkpoint continue.
        stop: the stop conditions.
        request: the request to stop. Runs that train then save and end, and final evaluations are interrupted.
        options: the arguments of `rollax train`, by name.
        watch: called about five times a second.
    Raises:
        Exception: the first error of a run; no further run has begun after it. Numbers that are not finite end only
            their setting, if there is a sweep.
        Interrupted: a signal has interrupted a final evaluation.
    """
    from rollax.many.together import is_compiled, may_differ  # loaded only where it is used

    with training.make(runs[0], resumed(runs[0].folder)) as first:
        if not is_compiled(first):
            return None
        arguments, groups = may_differ(first), dict[Any, list[PlannedRun]]()
        for run in runs:
            compiled_for = tuple((key, value) for key, value in run.setting.values if key not in arguments)
            groups.setdefault(compiled_for, []).append(run)
        together = _Together(training, stop, request, options, watch, _Progress(len(runs), quiet=options["quiet"]))
        for group in groups.values():
            together.train(group, first if group[0] is runs[0] else None)
        return together.outcome


class _NotBegunError(Exception):
    """A run does not begin, because of an error in another run or a signal."""


class _Together:
    """Trains groups of runs, with the arguments of `train_here`."""

    def __init__(
        self,
        training: Training,
        stop: Mapping[str, float],
        request: StopRequest,
        options: Mapping[str, Any],
        watch: Callable[[], None],
        progress: _Progress,
    ) -> None:
        self.outcome = Outcome()
        self._training, self._stop, self._request, self._options = training, stop, request, options
        self._watch, self._progress = watch, progress
        self._failed: list[BaseException] = []
        self._fitting: set[PlannedRun] = set()

    def train(self, runs: Sequence[PlannedRun], first: Trainer | None) -> None:
        """Trains a group of runs, unless there was a signal; `first` is the trainer of the first run, if made."""
        from rollax.many.together import train_together

        resume = [resumed(run.folder) for run in runs]

        def make(number: int) -> Trainer:
            run = runs[number]
            if self._ends(run):
                raise _NotBegunError
            with self._noting_errors(run):
                trainer = first if first is not None and number == 0 else self._training.make(run, resume[number])
            self._progress.begun(run, trainer)
            return trainer

        def train(number: int, trainer: Trainer) -> None:
            run = runs[number]
            if self._ends(run):
                return
            self._fitting.add(run)
            try:
                with self._noting_errors(run):
                    fitted = self._training.fit(trainer, run, resume[number], self._stop)
            finally:
                self._fitting.discard(run)
            self._progress.ended(run, fitted)
            if self._options["must_reach"] and fitted.missed_goal:
                self.outcome.codes.add(MISSED_GOAL)

        if not self._request.signal:
            train_together(make, len(runs), train, watch=self._show)
        if self._failed:
            raise self._failed[0]

    def _ends(self, run: PlannedRun) -> bool:
        return bool(self._failed) or self._request.signal is not None or run.setting in self.outcome.diverged

    @contextmanager
    def _noting_errors(self, run: PlannedRun) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if isinstance(error, NonFiniteError) and run.setting.values:
                self.outcome.diverged.add(run.setting)
                print(f"{run.label}: {error}", file=sys.stderr, flush=True)
            else:
                self._failed.append(error)
            raise

    def _show(self) -> None:
        signal = self._request.signal
        if signal is not None:
            StopRequest.forward(signal)
            if self._fitting and not StopRequest.of_threads:  # only final evaluations are left, of runs that are saved
                raise Interrupted(signal)
        self._progress.show()
        self._watch()


class _Progress:
    """Lines about all runs, and one for each that has ended."""

    def __init__(self, runs: int, *, quiet: bool) -> None:
        self._runs, self._quiet = runs, quiet
        self._running: dict[PlannedRun, tuple[Trainer, int]] = {}  # with the trainer's steps before this training
        self._ended = self._steps = 0  # the runs that have ended, and their steps
        self._before = time.monotonic(), 0

    def begun(self, run: PlannedRun, trainer: Trainer) -> None:
        """Counts the steps of a run from now on."""
        self._running[run] = trainer, trainer.optimizer.env_steps

    def ended(self, run: PlannedRun, fitted: FitResult) -> None:
        trainer, before = self._running.pop(run)
        self._ended, self._steps = self._ended + 1, self._steps + trainer.optimizer.env_steps - before
        if not self._quiet:
            last = fitted.last
            greedy = "" if last["evaluation"] is None else f", greedy {last['evaluation']['episode_reward_mean']:.2f}"
            mean = last["episode_reward_mean"]
            reward = "no episode has ended" if mean is None else f"reward {mean:.2f}"
            print(f"{run.label}: {last['timesteps_total']:,} steps, {reward}{greedy}", flush=True)

    def show(self) -> None:
        """Shows how far all runs are, every few seconds."""
        now = time.monotonic()
        if self._quiet or now - self._before[0] < _LINES_EVERY_S:
            return
        running = list(self._running.values())
        steps = self._steps + sum(trainer.optimizer.env_steps - before for trainer, before in running)
        (before, steps_before), self._before = self._before, (now, steps)
        rate = (steps - steps_before) / (now - before)
        print(f"{self._ended} of {self._runs} runs ended, {steps:,} steps, {rate:,.0f} steps/s", flush=True)
