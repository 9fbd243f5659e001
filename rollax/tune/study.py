"""`run_study`: trials until a limit, their record, and the file with the best settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rollax.core.atomic_files import replace_file
from rollax.core.numbers import is_finite, is_whole
from rollax.errors import ConfigError, RollaxError
from rollax.runs.display import PlainDisplay
from rollax.runs.interrupts import StopRequest
from rollax.runs.run_lock import RunLock
from rollax.tune.best_file import best_file
from rollax.tune.record import Record, TrialResult
from rollax.tune.report import settings_line, trial_line
from rollax.tune.runners import InProcesses, InThisProcess, Runner
from rollax.tune.settings import (
    BEST,
    EXPERIMENT,
    JOURNAL,
    Options,
    Pruner,
    Sampler,
    Settings,
    is_study,
    read_options,
    settings_of,
    write_settings,
)
from rollax.tune.space import with_values
from rollax.tune.trial import Failed, Message, Score, Scored, Trained

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

TRIALS = 20
_MOST_FAILED = 5
"""A study whose first trials all fail has a mistake that further trials would repeat."""


@dataclass(frozen=True)
class StudyResult:
    """The outcome of a study.

    Args:
        settings: what was searched, and how.
        trials: all trials so far, by number.
        importances: config key -> its share in what distinguishes the best trials; empty for few trials.
        signal: the number of the signal that ended the call (2 for Ctrl-C), or None.
        folder: the folder of the study; None for a study in memory.
        best_file: the experiment file with the best settings; None without a finished trial or a folder.
    """

    settings: Settings
    trials: tuple[TrialResult, ...]
    importances: Mapping[str, float]
    signal: int | None
    folder: Path | None
    best_file: Path | None

    @property
    def ranked(self) -> list[TrialResult]:
        """The finished trials, the best first."""
        return ranked(self.trials)

    @property
    def best(self) -> TrialResult:
        """The finished trial with the highest score.

        Raises:
            RollaxError: no trial has finished.
        """
        if not self.ranked:
            where, number = str(self.folder or "run_study"), f"{len(self.trials)} trials"
            raise RollaxError("The study has no finished trial.", where, number).fix("go on with more or longer trials")
        return self.ranked[0]

    @property
    def best_config(self) -> dict[str, Any]:
        """The config of the best trial, without `env` and `seed`."""
        return with_values(self.settings.config, self.best.values)


def ranked(trials: tuple[TrialResult, ...]) -> list[TrialResult]:
    """Returns the finished trials, the best first; of equal scores the earlier trial first."""
    finished = [trial for trial in trials if trial.score is not None]
    return sorted(finished, key=lambda trial: -(trial.score or 0.0))


def run_study(
    run: str | Path | type[Trainer],
    env: Any = None,
    config: Mapping[str, Any] | None = None,
    *,
    stop: Mapping[str, float] | None = None,
    search: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time_s: float | None = None,
    sampler: Sampler | None = None,
    pruner: Pruner | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    evaluations: int | None = None,
    score: Score | None = None,
    study: str | Path | None = None,
    jobs: int = 1,
    trust_code: bool = False,
    show: Callable[[str], None] = print,
) -> StudyResult:
    """Searches for good settings of an algorithm, and returns all trials.

    A trial trains with drawn values up to the limits in `stop`. Reward goals and plateaus do not end it, so that all
    trials train equally long. The score of a trial is the mean of the last evaluations of its seeds. A trial that
    fails, such as by a divergence, is recorded with its reason. Ctrl-C ends the trials that run. The same call with a
    `study` begins them again, from their start.

    Args:
        run: an algorithm, a trainer class, an experiment file (.yaml) as `rollax train -f` reads it, or the folder of
            a study, which goes on with its own settings.
        env: the environment; None for the environment in the file.
        config: config keys that are not searched; they replace keys of the file.
        stop: stop conditions, at least one limit; they replace conditions of the file.
        search: config key -> distribution in words, such as `{"lr": {"log": [1e-5, 1e-2]}}`; the keys of parts have
            dots, as in `model.fcnet_hiddens`. The keys replace keys in the section `search` of the file. If
            neither is given, a default space of the algorithm is searched.
        trials: how many trials the study has in the end, earlier ones included; by default 20, all points of a grid,
            or no limit if `time_s` is given.
        time_s: seconds after which this call begins no further trial.
        sampler: "tpe" (the default), "random", "cmaes" or "grid".
        pruner: "median" (the default), "halving" or "none".
        seeds: number of runs of a trial; 1 by default.
        seed: the seed of the sampler and of the first run of a trial; 1000 by default, because `rollax zoo measure`
            should use other seeds, and begins at 0.
        evaluations: number of evaluations of a trial, at equal shares of its limit; 5 by default.
        score: "evaluation" (the default) for greedy episodes, "training" for the training episodes.
        study: a new folder, or the folder of a study with the same settings, which goes on; None: nothing is written.
        jobs: number of trials that run at the same time, each in a process of its own if `jobs` exceeds 1.
        trust_code: import the classes and functions that the file names.
        show: called with a text about the search space, and with one about each trial that has ended.
    Raises:
        ConfigError: a setting is wrong, another process uses the folder, or the extra `tune` is not installed.
        RollaxError: five trials or more have ended, and all of them failed.
    """
    for name, value in (("trials", trials), ("jobs", jobs)):
        if value is not None and not (is_whole(value) and value > 0):
            raise ConfigError.out_of_range(name, f"tune: {name}", value, "a whole number of at least 1")
    if time_s is not None and not (is_finite(time_s) and time_s > 0):
        raise ConfigError.out_of_range("The time", "tune: time", time_s, "more than 0 seconds")
    given: dict[str, Any] = {
        "sampler": sampler,
        "pruner": pruner,
        "seeds": seeds,
        "seed": seed,
        "evaluations": evaluations,
        "score": score,
    }
    options = {name: value for name, value in given.items() if value is not None}
    folder = None if study is None else Path(study)
    if isinstance(run, str | Path) and is_study(run):
        others = {"env": env, "config": config, "stop": stop, "search": search, "study": study}
        for name, value in (options | {name: value for name, value in others.items() if value}).items():
            raise ConfigError.no_effect(name, "the study has its own settings", f"tune: {name}", value)
        folder = Path(run)
        settings = settings_of(folder / EXPERIMENT, None, {}, {}, None, read_options(folder), trust_code=trust_code)
    else:
        settings = settings_of(run, env, config or {}, stop or {}, search, Options(**options), trust_code=trust_code)
    with ExitStack() as stack:
        if folder is not None:
            folder = stack.enter_context(RunLock(folder, "--study")).folder
            write_settings(folder, settings)
        record = Record(None if folder is None else folder / JOURNAL, settings)
        if settings.options.sampler == "grid":
            trials = min(record.points, record.points if trials is None else trials)
        if trials is None and time_s is None:
            trials = TRIALS
        show(settings_line(settings))
        request = stack.enter_context(StopRequest(PlainDisplay().stopping))
        runner = InThisProcess(settings.task) if jobs == 1 else InProcesses(settings.task, jobs)
        loop = _Loop(settings, record, stack.enter_context(runner), folder, show)
        deadline = inf if time_s is None else monotonic() + time_s
        loop.run(lambda: record.begun < (inf if trials is None else trials) and monotonic() < deadline, request)
        return loop.result(request.signal)


class _Loop:
    """Begins trials and records their messages."""

    def __init__(
        self,
        settings: Settings,
        record: Record,
        runner: Runner,
        folder: Path | None,
        show: Callable[[str], None],
    ) -> None:
        self._settings, self._record, self._runner, self._folder, self._show = settings, record, runner, folder, show
        self._running: set[int] = set()

    def run(self, another: Callable[[], bool], request: StopRequest) -> None:
        """Begins trials while `another()` is true, and runs them until all have ended or a signal comes.

        Interrupted trials are begun again when the study goes on; so are those that an error interrupts, which may
        have left the record's file incomplete.
        """
        while request.signal is None:
            while self._runner.free and another():
                self._begin()
            if not self._running:
                break
            for number, message in self._runner.messages():
                # Ctrl-C also reaches processes of the environment: its end may be an effect of the signal.
                if request.signal is None or not isinstance(message, Failed):
                    self._take(number, message)
        for number in sorted(self._running):
            self._record.interrupt(number)

    def result(self, signal: int | None) -> StudyResult:
        trials = tuple(self._record.results())
        best = self._write_best(trials)
        return StudyResult(self._settings, trials, self._record.importances(), signal, self._folder, best)

    def _write_best(self, trials: tuple[TrialResult, ...]) -> Path | None:
        best = ranked(trials)
        if self._folder is None or not best:
            return None
        path = self._folder / BEST
        replace_file(path, best_file(self._settings, trials, best[0]).encode())
        return path

    def _begin(self) -> None:
        number, values = self._record.begin()
        self._running.add(number)
        self._runner.begin(number, with_values(self._settings.task.config, values))

    def _take(self, number: int, message: Message) -> None:
        match message:
            case None:
                return
            case Scored(part, score):
                pruned = self._record.report(number, part, score) and part < self._settings.options.evaluations
                self._runner.go_on(number, not pruned)
                if not pruned:
                    return
                self._record.prune(number)
            case Trained(score, steps):
                self._record.finish(number, score, steps)
            case Failed(reason, by_settings):
                self._record.fail(number, reason, by_settings=by_settings)
        self._running.discard(number)
        self._after_end(number)

    def _after_end(self, number: int) -> None:
        trials = tuple(self._record.results())
        ended = next(trial for trial in trials if trial.number == number)
        best = ranked(trials)
        if best and best[0].number == number:
            self._write_best(trials)
        self._show(trial_line(ended, self._settings))
        over = [trial for trial in trials if trial.state != "running"]
        if len(over) >= _MOST_FAILED and all(trial.state == "failed" for trial in over):
            raise RollaxError(
                f"The first {len(over)} trials failed.", str(self._folder or "run_study"), ended.reason
            ).expected("trials with a score", "correct the error of the last trial, or search in another range")
