"""The training of one trial: all its seeds side by side, scored at equal intervals up to its limit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from rollax.core.numbers import is_finite
from rollax.errors import ConfigError, NonFiniteError, text_of
from rollax.runs.results import WHERE_IN_RESULT, number_in
from rollax.runs.stopping import reached

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

log = logging.getLogger("rollax.tune")
Score = Literal["evaluation", "training"]


@dataclass(frozen=True)
class Task:
    """What all trials of a study have in common.

    Args:
        trainer_class: the algorithm.
        config: config keys that are not searched, with the environment.
        stop: the limits of each run, at least one of `rollax.runs.stopping.LIMITS`.
        seeds: the config key `seed` of each run of a trial.
        evaluations: number of scores of a run, at equal intervals up to its limit.
        score: whether to score greedy episodes or training episodes.
    """

    trainer_class: type[Trainer]
    config: Mapping[str, Any]
    stop: Mapping[str, float]
    seeds: tuple[int, ...] = (0,)
    evaluations: int = 5
    score: Score = "evaluation"


@dataclass(frozen=True)
class Scored:
    """The mean score of the seeds of a trial at the share `part / evaluations` of its limit."""

    part: int
    score: float


@dataclass(frozen=True)
class Trained:
    """The end of a trial, with the mean score of the seeds and the environment steps of one seed."""

    score: float
    steps: int


@dataclass(frozen=True)
class Failed:
    """The end of a trial that has no score, and why.

    `by_settings`: similar values would probably fail too, for example because training diverges.
    """

    reason: str
    by_settings: bool


Message = Scored | Trained | Failed | None
"""A message of a running trial; None after each training iteration, before a score if there is one."""


def run_trial(task: Task, config: Mapping[str, Any]) -> Iterator[Message]:
    """Trains with a config. The last message is `Trained` or `Failed`, unless the caller closes the iterator before.

    The seeds train side by side, so that each score is a mean of all seeds after an equal share of training.
    """
    try:
        yield from _trained(task, config)
    except Exception as error:  # also of the user's environment and of XLA, such as a lack of memory
        by_settings = isinstance(error, ConfigError | NonFiniteError)
        yield Failed(f"{type(error).__name__}: {text_of(error)}", by_settings)


def _trained(task: Task, config: Mapping[str, Any]) -> Iterator[Message]:
    with ExitStack() as stack:
        runs = []
        for seed in task.seeds:
            trainer = task.trainer_class(config={**config, "seed": seed})
            stack.callback(_stop, trainer)
            stack.enter_context(trainer.stopping_at(task.stop.get("timesteps_total", inf)))
            runs.append(_Run(trainer, task))
        part, score = 0, None
        while part < task.evaluations and not all(run.ended for run in runs):
            for run in runs:
                yield from run.advanced(part + 1)
            part = max(part + 1, min(run.part for run in runs))
            scores = [found for run in runs if (found := run.score()) is not None]
            if len(scores) < len(runs):
                continue  # no training episode has ended yet
            score = fmean(scores)
            if not is_finite(score):
                yield Failed("the score is not a finite number", by_settings=True)
                return
            yield Scored(min(part, task.evaluations), score)
        if score is None:
            yield Failed("no episode has ended, so there is no score; raise the limit in stop", by_settings=False)
        else:
            yield Trained(score, int(number_in(runs[0].result, "timesteps_total") or 0))


def _stop(trainer: Trainer) -> None:
    """Stops a trainer; an error is only logged, because the trial has ended, and no message may follow its last one."""
    try:
        trainer.stop()
    except Exception:
        log.warning("A trainer of a trial could not be stopped.", exc_info=True)


@dataclass
class _Run:
    """One seed of a trial."""

    trainer: Trainer
    task: Task
    result: Mapping[str, Any] = field(default_factory=dict)
    ended: bool = False

    @property
    def part(self) -> int:
        """How many shares of the limit are reached."""
        limits = self.task.stop.items()
        done = max((number_in(self.result, *WHERE_IN_RESULT[name]) or 0) / limit for name, limit in limits)
        return self.task.evaluations if self.ended else int(done * self.task.evaluations + 1e-9)

    def advanced(self, part: int) -> Iterator[None]:
        """Trains until a share of the limit is reached, or the run ends."""
        while not self.ended and self.part < part:
            self.result = self.trainer.train()
            self.ended = reached(self.task.stop, self.result) is not None
            yield None

    def score(self) -> float | None:
        """The mean reward: of greedy episodes if `Task.score` says so and they can be played, else of training."""
        if self.task.score == "evaluation" and self.trainer.can_evaluate:
            return self.trainer.evaluate()["episode_reward_mean"]
        return number_in(self.result, "episode_reward_mean")
