"""Many runs that train together in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rollax.cli.console import MISSED_GOAL
from rollax.cli.planned_runs import Outcome, PlannedRun, resumed
from rollax.errors import NonFiniteError, text_of
from rollax.runs.interrupts import Interrupted, StopRequest

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.cli.training import Training
    from rollax.runs.fit import FitResult

_LINES_EVERY_S = 10.0


def train_here(
    training: Training,
    runs: Sequence[PlannedRun],
    stop: Mapping[str, float],
    request: StopRequest,
    options: Mapping[str, Any],
    watch: Callable[[], None],
) -> tuple[Outcome, list[PlannedRun]]:
    """Trains runs in threads of this process; returns their outcome, and the runs whose steps are not compiled.

    Runs share compiled functions if their settings differ only in numbers that are arguments of these functions.
    Groups of runs that differ in other numbers, such as `gamma`, train one after another. Runs whose steps are not
    compiled, for example with `num_workers=1`, do not train here. If the first run is one of these, no run trains here.

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
    from rollax.many.together import is_compiled  # loaded only where it is used

    together = _Together(training, stop, request, options, watch, _Progress(len(runs), quiet=options["quiet"]))
    with together.made(runs[0]) as first:
        if not is_compiled(first):
            return together.outcome, list(runs)
        groups = _groups(runs, first)
        left = together.train(groups[0], first)
    for group in groups[1:]:
        if request.signal is None:
            with together.made(group[0]) as first:
                left += together.train(group, first)
    return together.outcome, left


def _groups(runs: Sequence[PlannedRun], first: Trainer) -> list[list[PlannedRun]]:
    """The runs in groups that can share compiled functions; `first` is the trainer of the first run."""
    from rollax.many.together import may_differ  # loaded only where it is used

    arguments, groups = may_differ(first), dict[Any, list[PlannedRun]]()
    for run in runs:
        compiled_for = tuple((key, value) for key, value in run.setting.values if key not in arguments)
        groups.setdefault(compiled_for, []).append(run)
    return list(groups.values())


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

    def made(self, run: PlannedRun) -> Trainer:
        """Returns the trainer of a run, new or restored from its newest checkpoint."""
        with self._noting_errors(run):
            return self._training.make(run, resumed(run.folder))

    def train(self, runs: Sequence[PlannedRun], first: Trainer) -> list[PlannedRun]:
        """Trains a group of runs, unless there was a signal; returns the runs if their steps are not compiled.

        `first` is the trainer of the first run.
        """
        from rollax.many.together import is_compiled, train_together

        if not is_compiled(first):
            self._progress.runs -= len(runs)
            return list(runs)
        resume = [resumed(run.folder) for run in runs]

        def make(number: int) -> Trainer:
            run = runs[number]
            if self._ends(run):
                raise _NotBegunError
            with self._noting_errors(run):
                return first if number == 0 else self._training.make(run, resume[number])

        def train(number: int, trainer: Trainer) -> None:
            run = runs[number]
            if self._ends(run):
                return
            self._fitting.add(run)
            try:
                with self._noting_errors(run), self._progress.of(run, trainer):
                    fitted = self._training.fit(trainer, run, resume[number], self._stop)
            finally:
                self._fitting.discard(run)
            self._progress.print_end(run, fitted)
            if self._options["must_reach"] and fitted.missed_goal:
                self.outcome.codes.add(MISSED_GOAL)

        with suppress(_NotBegunError):  # of `make` in this thread
            results = train_together(make, len(runs), train, watch=self._show)
            # `_noting_errors` does not see the error of a trainer that does not fit the first one, or fails to stop.
            errors = [result for result in results if isinstance(result, BaseException)]
            self._failed += [e for e in errors if not isinstance(e, _NotBegunError | NonFiniteError)]
        if self._failed:
            raise self._failed[0]
        return []

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
                first_line = (text_of(error).splitlines() or [""])[0]
                what = f"{run.label}: {type(error).__name__}: {first_line}"
                print(f"{what} No further run begins.", file=sys.stderr, flush=True)
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
        self.runs, self._quiet = runs, quiet
        self._running: dict[PlannedRun, tuple[Trainer, int]] = {}  # with the trainer's steps before this training
        self._ended: list[int] = []  # the steps of each run that has ended
        self._before = time.monotonic(), 0

    @contextmanager
    def of(self, run: PlannedRun, trainer: Trainer) -> Iterator[None]:
        """Counts the steps of a run, which trains in the block, in a thread of its own."""
        before = trainer.optimizer.env_steps
        self._running[run] = trainer, before
        try:
            yield
        finally:
            del self._running[run]  # with the trainer, whose replay buffer may be large
            self._ended.append(trainer.optimizer.env_steps - before)

    def print_end(self, run: PlannedRun, fitted: FitResult) -> None:
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
        steps = sum(self._ended) + sum(trainer.optimizer.env_steps - before for trainer, before in running)
        (before, steps_before), self._before = self._before, (now, steps)
        rate = (steps - steps_before) / (now - before)
        print(f"{len(self._ended)} of {self.runs} runs ended, {steps:,} steps, {rate:,.0f} steps/s", flush=True)
