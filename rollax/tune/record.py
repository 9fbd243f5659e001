"""The trials of a study, kept by Optuna: the values of each trial, whether it is pruned, and its outcome.

Source: Akiba et al. (2019), arXiv:1907.10902. The samplers are TPE (Bergstra et al., 2011), CMA-ES (Hansen, 2016,
arXiv:1604.00772), random values and a grid; the pruners the median rule (Golovin et al., 2017) and asynchronous
successive halving (Li et al., 2018, arXiv:1810.05934). Importances are computed by PED-ANOVA (Watanabe et al., 2023,
arXiv:2304.10255), which needs no further package.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollax.core.atomic_files import replace_file
from rollax.errors import ConfigError, not_installed
from rollax.many.halving import Halving
from rollax.tune.distributions import Choice, Distribution, Range, Space
from rollax.tune.settings import Pruner, Sampler, Settings

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages import InMemoryStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, Trial, TrialState
except ImportError as error:
    raise not_installed("A study", error, where="rollax tune", package="optuna", extra="tune") from error

State = Literal["finished", "pruned", "failed", "running"]

_NAME = "rollax"
_FAILURE, _STEPS = "failure", "steps"
HALVING = Halving(first=1, factor=3)
"""The rungs are evaluations. Optuna's rule is asynchronous: a trial does not wait for others at a rung."""
_MOST_POINTS = 10_000
_FEWEST_FOR_IMPORTANCE = 10


@dataclass(frozen=True)
class TrialResult:
    """The outcome of one trial.

    Args:
        number: the number of the trial, from 0 on; a repeated trial has a new number.
        state: "finished", "pruned", "failed" or "running".
        score: the mean score of the seeds; None unless the trial has finished.
        values: config key -> value.
        scores: k -> mean score of the seeds after the share k / `evaluations` of the limit.
        steps: environment steps of one seed; None unless the trial has finished.
        reason: why the trial failed.
        seconds: the duration of the trial.
    """

    number: int
    state: State
    score: float | None
    values: Mapping[str, Any]
    scores: Mapping[int, float]
    steps: int | None = None
    reason: str | None = None
    seconds: float | None = None


class Record:
    """The trials of one study, in a file or in memory.

    The values of a trial depend only on `seed`, on its position among the trials, and on the trials before it. So a
    study that was interrupted goes on as if it had not been.

    Args:
        file: JSON lines, continued if it exists; None for a study in memory.
        settings: the space, the sampler, its seed and the pruner.
    Raises:
        ConfigError: a grid of distributions without a finite number of values, or of more than 10,000 points.
    """

    def __init__(self, file: Path | None, settings: Settings) -> None:
        self._space, self._options = settings.space, settings.options
        self._distributions = {key: _in_optuna(distribution) for key, distribution in self._space.items()}
        self._points = _grid(self._space) if self._options.sampler == "grid" else []
        self.points = len(self._points)
        """The number of trials of a grid."""
        with _quiet():
            self._study = optuna.create_study(
                storage=InMemoryStorage() if file is None else _storage(file),
                study_name=_NAME,
                direction="maximize",
                load_if_exists=True,
                pruner=_pruner(self._options.pruner),
            )
            self._running: dict[int, Trial] = {}
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self._end_interrupted(trial.number, trial.params)  # of a process that was killed

    @property
    def begun(self) -> int:
        """The number of trials that have ended or are running; interrupted trials, which are repeated, do not count."""
        return sum(trial.state != TrialState.WAITING for trial in self._counted())

    def begin(self) -> tuple[int, dict[str, Any]]:
        """Begins a trial, and returns its number and its values by config key."""
        words = (self._options.seed, self.begun)
        self._study.sampler = _sampler(self._options.sampler, int(np.random.SeedSequence(words).generate_state(1)[0]))
        with _quiet():
            if self._points:
                self._enqueue_next_point()
            trial = self._study.ask(self._distributions)
        self._running[trial.number] = trial
        return trial.number, self._values(trial.params)

    def report(self, number: int, part: int, score: float) -> bool:
        """Stores a score of a running trial, and returns whether it is to be pruned."""
        trial = self._running[number]
        trial.report(score, part)
        return trial.should_prune()

    def finish(self, number: int, score: float, steps: int) -> None:
        trial = self._running.pop(number)
        trial.set_user_attr(_STEPS, steps)
        self._study.tell(trial, score)

    def prune(self, number: int) -> None:
        self._study.tell(self._running.pop(number), state=TrialState.PRUNED)

    def fail(self, number: int, reason: str, *, by_settings: bool) -> None:
        """Ends a trial that has no score; a sampler avoids its values only if the failure is `by_settings`."""
        trial = self._running.pop(number)
        trial.set_user_attr(_FAILURE, reason)
        self._study.tell(trial, state=TrialState.PRUNED if by_settings else TrialState.FAIL)

    def interrupt(self, number: int) -> None:
        """Ends a trial that is begun again when the study goes on."""
        self._end_interrupted(number, self._running.pop(number).params)

    def results(self) -> list[TrialResult]:
        """Returns all trials but interrupted ones, by number."""
        return [self._result(trial) for trial in self._counted() if trial.state != TrialState.WAITING]

    def importances(self) -> dict[str, float]:
        """Returns the importance of each key for a place among the best tenth of the trials, the largest first.

        Empty with fewer than 10 finished trials, or if all their scores are equal.
        """
        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) < _FEWEST_FOR_IMPORTANCE or len({trial.value for trial in finished}) == 1:
            return {}
        with _quiet():
            return dict(optuna.importance.get_param_importances(self._study))

    def _enqueue_next_point(self) -> None:
        """Stores the first point of the grid without a trial; in records of earlier versions, trials wait first."""
        trials = self._counted()
        if all(trial.state != TrialState.WAITING for trial in trials):
            tried = {tuple(trial.params.get(key) for key in self._space) for trial in trials}
            self._study.enqueue_trial(next(point for point in self._points if tuple(point.values()) not in tried))

    def _counted(self) -> list[FrozenTrial]:
        return _without_interrupted(self._study.get_trials(deepcopy=False))

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._space[key].value_of(param) for key, param in params.items()}

    def _result(self, trial: FrozenTrial) -> TrialResult:
        states: dict[TrialState, State] = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned"}
        state = states.get(trial.state, "running" if trial.state == TrialState.RUNNING else "failed")
        reason = trial.user_attrs.get(_FAILURE)
        return TrialResult(
            number=trial.number,
            state=state if reason is None else "failed",
            score=trial.value if state == "finished" else None,
            values=self._values(trial.params),
            scores=dict(trial.intermediate_values),
            steps=trial.user_attrs.get(_STEPS),
            reason=reason,
            seconds=None if trial.duration is None else trial.duration.total_seconds(),
        )

    def _end_interrupted(self, number: int, params: Mapping[str, Any]) -> None:
        # No reason is stored: by the reason, `_without_interrupted` recognizes a trial that failed.
        self._study.tell(number, state=TrialState.FAIL)
        # Of a grid, the point is the next one without a trial. A trial that ended while its values were drawn has only
        # some of them: all of them are drawn again.
        if not self._points and params.keys() == self._space.keys():
            self._study.enqueue_trial(dict(params))


def _grid(space: Space) -> list[dict[str, Any]]:
    values = {key: _points(key, distribution) for key, distribution in space.items()}
    number = math.prod(map(len, values.values()))
    if number > _MOST_POINTS:
        raise ConfigError.out_of_range("The number of points of the grid", "sampler", number, f"at most {_MOST_POINTS}")
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def _points(key: str, distribution: Distribution) -> list[Any]:
    if isinstance(distribution, Choice):
        return list(distribution.labels)
    step = distribution.step or (1 if distribution.whole and not distribution.log else None)
    if step is None:
        raise ConfigError(
            "A grid needs a finite number of values.", f"search: {key}", distribution.in_words()
        ).expected("a choice, whole numbers, or a range with a step", "write {choice: [...]}, or use another sampler")
    return [distribution.low + step * count for count in range(_steps(distribution, step) + 1)]


def _steps(distribution: Range, step: float) -> int:
    return int((distribution.high - distribution.low) / step + 1e-9)


def _in_optuna(distribution: Distribution) -> Any:
    if isinstance(distribution, Choice):
        return CategoricalDistribution(distribution.labels)
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is not None:
        high = low + step * _steps(distribution, step)
    if distribution.whole:
        return IntDistribution(int(low), int(high), log=distribution.log, step=int(step or 1))
    return FloatDistribution(low, high, log=distribution.log, step=step)


def _sampler(sampler: Sampler, seed: int) -> Any:
    match sampler:
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed)
        case "cmaes":
            # Choices, which have no covariance, and the values of the first trials are random.
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case "random" | "grid":
            return optuna.samplers.RandomSampler(seed=seed)


class _HalvingPruner(optuna.pruners.SuccessiveHalvingPruner):
    """Optuna's rule, which would count a trial again for each of its interruptions."""

    def prune(self, study: Any, trial: FrozenTrial) -> bool:
        counted = copy(study)
        counted.get_trials = lambda deepcopy=True: _without_interrupted(study.get_trials(deepcopy))
        return super().prune(counted, trial)


def _without_interrupted(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in trials if trial.state != TrialState.FAIL or _FAILURE in trial.user_attrs]


def _pruner(pruner: Pruner) -> Any:
    match pruner:
        case "median":
            return optuna.pruners.MedianPruner()
        case "halving":
            return _HalvingPruner(min_resource=HALVING.first, reduction_factor=HALVING.factor)
        case "none":
            return optuna.pruners.NopPruner()


def _storage(file: Path) -> JournalStorage:
    """Returns the storage of a file, without what a killed process or a full disk has left: half a line, or a lock.

    The caller has the lock of the study's folder.
    """
    for left in file.parent.glob(f"{file.name}.lock*"):
        left.unlink()
    if file.exists() and not (content := file.read_bytes()).endswith(b"\n"):
        replace_file(file, content[: content.rfind(b"\n") + 1])
    return JournalStorage(JournalFileBackend(str(file)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines that Optuna logs, and its warnings of features that may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module="optuna")
            yield
    finally:
        optuna.logging.set_verbosity(before)
