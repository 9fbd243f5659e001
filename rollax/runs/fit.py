"""`fit`: trains until a stop condition or Ctrl-C, with progress display and run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.errors import ConfigError
from rollax.runs.display import Progress, ProgressMode, make_display, title_of
from rollax.runs.interrupt import StopRequest
from rollax.runs.run_folder import Record, RunFolder
from rollax.runs.stopping import StopConditions, TimeLeft

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.evaluation.results import TrainResult

EVALUATION_INTERVAL = 10
"""Iterations between the evaluations that a greedy goal needs, where the config sets no interval."""


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The outcome of a training run.

    Args:
        last: the last result; its `evaluation` is the final greedy evaluation, if any.
        reached: the stop condition that ended the run; None after a signal.
        missed_goal: whether a reward goal was set and none was reached.
        signal: the number of the signal that ended the run (2 for Ctrl-C), or None.
        out: the run folder; None if nothing was written.
        checkpoint: the last checkpoint.
        best_checkpoint: the checkpoint of the best model.
        best_score: the mean reward of the best model.
    """

    last: TrainResult
    reached: str | None
    missed_goal: bool
    signal: int | None = None
    out: Path | None = None
    checkpoint: Path | None = None
    best_checkpoint: Path | None = None
    best_score: float | None = None


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Options of a run; `Trainer.fit` describes them.

    Raises:
        ConfigError: a number is out of range.
    """

    out: Path | None = None
    checkpoint_interval: int = 0
    keep_checkpoints: int | None = None
    keep_best: bool = True
    evaluate: bool = True
    progress: ProgressMode = "auto"

    def __post_init__(self) -> None:
        for name, lowest in (("checkpoint_interval", 0), ("keep_checkpoints", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < lowest):
                raise ConfigError(
                    f"{name} is out of range.",
                    where=f"fit({name}=...)",
                    got=value,
                    expected=f"an integer of at least {lowest}",
                )


def fit(trainer: Trainer, run: str, stop: StopConditions, options: FitOptions) -> FitResult:
    """Trains until `stop` or a signal, then saves a checkpoint and evaluates.

    Each result is on disk before it is shown. An error in an iteration is raised; results and checkpoints written so
    far stay.

    Args:
        trainer: the trainer.
        run: the algorithm, as in `rollax train --run`.
        stop: the stop conditions.
        options: output options.
    """
    title = title_of(run, trainer.config.env, options.out)
    display, left = make_display(title, options.progress), TimeLeft(stop)
    interval = trainer.config.evaluation_interval
    greedy_goal = stop.evaluation_reward_mean is not None
    evaluates_every = EVALUATION_INTERVAL if greedy_goal and interval is None else None
    with _record(trainer, run, stop, options, evaluates=greedy_goal or interval is not None) as record:
        with StopRequest(announce=display.stopping) as request, display:
            while True:
                result = trainer.train()
                if evaluates_every and trainer.iteration % evaluates_every == 0:
                    result["evaluation"] = trainer.evaluate()
                record.append(result)
                display.update(Progress.of(result, left.estimate(result)))
                record.log_scalars(result)
                reached = stop.reached(result)
                if reached or request.signal is not None:
                    break
                is_due = bool(options.checkpoint_interval) and trainer.iteration % options.checkpoint_interval == 0
                if is_due:
                    record.save(trainer)
                record.keep_best(trainer, result, saved=is_due)
            record.save(trainer)
        if reached and options.evaluate and result.get("evaluation") is None:
            _evaluate_at_end(trainer, result, record)
            reached = stop.reached(result)
        record.keep_best(trainer, result, saved=True)
    return FitResult(
        last=result,
        reached=reached,
        missed_goal=stop.missed_goal(result),
        signal=None if reached else request.signal,
        out=record.path,
        checkpoint=record.last_checkpoint,
        best_checkpoint=record.best.checkpoint if record.best else None,
        best_score=record.best.score if record.best else None,
    )


def _record(trainer: Trainer, run: str, stop: StopConditions, options: FitOptions, *, evaluates: bool) -> Record:
    """Returns the record of the run; for a trainer from a checkpoint it starts with the earlier results."""
    if options.out is None:
        return Record()
    settings = trainer.config.to_json()
    experiment: Mapping[str, Any] = {
        "run": run,
        "env": settings.pop("env"),
        "config": settings,
        "stop": stop.given,
    }
    best_by = "evaluation_reward_mean" if evaluates else "episode_reward_mean"
    folder = RunFolder(
        options.out,
        experiment,
        best_by=best_by if options.keep_best else None,
        keep_checkpoints=options.keep_checkpoints,
    )
    if trainer.restored_from is not None:
        folder.inherit(trainer.restored_from.resolve().parent.parent, trainer.iteration)
    return folder


def _evaluate_at_end(trainer: Trainer, result: TrainResult, record: Record) -> None:
    """Adds a greedy evaluation to the last result, unless Ctrl-C interrupts it."""
    try:
        result["evaluation"] = trainer.evaluate()
    except KeyboardInterrupt:
        return
    record.amend(result)
