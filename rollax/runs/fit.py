"""`fit`: trains until a stop condition or Ctrl-C, with progress display and run folder."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollax.core.numbers import is_whole
from rollax.errors import ConfigError
from rollax.runs.display import Display, ProgressMode, make_display, name_of_env, title_of
from rollax.runs.interrupts import Interrupted, StopRequest, sigterm_interrupts
from rollax.runs.loggers.table import DEFAULT_LOGGERS, make_loggers
from rollax.runs.results import number_in, results_until
from rollax.runs.rules.statistics import spec_of
from rollax.runs.rules.table import RULES
from rollax.runs.rules.watch import Watch
from rollax.runs.run_folder import RunFolder, is_continued
from rollax.runs.stopping import PLATEAU, Improvement, TimeLeft, checked_stop, missed_goal, reached

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.rollout.metrics import TrainResult
    from rollax.runs.loggers.logger import Logger

log = logging.getLogger("rollax.runs")

EVALUATION_INTERVAL = 10
"""Iterations between evaluations for a greedy goal, if the config sets no interval."""


@dataclasses.dataclass(frozen=True, repr=False)
class FitResult:
    """The outcome of a training run.

    Args:
        last: the last result; its `evaluation` is the final greedy evaluation, if any.
        reached: the stop condition that ended the run, "done" if a callback ended it; None after a signal.
        missed_goal: whether a reward goal was set and none was reached.
        signal: the number of the signal that ended the run or its final evaluation (2 for Ctrl-C), or None.
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

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        last = values.pop("last")
        shown = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        texts = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        return f"FitResult({', '.join(texts)},\n  last={last!r})"


def fit(
    trainer: Trainer,
    run: str,
    stop: Mapping[str, float],
    out: str | Path | None = None,
    *,
    checkpoint_frequency: int = 0,
    keep_checkpoints: int | None = None,
    keep_best: bool = True,
    evaluate: bool = True,
    progress: ProgressMode = "auto",
    loggers: Sequence[Any] | None = None,
    diagnose: bool = True,
) -> FitResult:
    """Trains until a stop condition or a signal; `Trainer.fit` describes the arguments. `run` names the algorithm."""
    _check_checkpoints(out, checkpoint_frequency, keep_checkpoints)
    conditions = _checked_conditions(trainer, stop)
    to_log = _loggers(out, loggers)
    path = None if out is None else Path(out)
    display, left = make_display(title_of(run, trainer.config.env, path), progress), TimeLeft(conditions)
    interval, evaluate = trainer.config.evaluation_interval, evaluate and trainer.can_evaluate
    greedy_goal = "evaluation_reward_mean" in conditions
    best_by = "evaluation_reward_mean" if greedy_goal or interval is not None else "episode_reward_mean"
    rules = RULES if diagnose else ()
    watch = Watch(trainer, run, conditions, rules, has_best=path is not None and keep_best)
    improvement = _improvement(trainer, best_by) if PLATEAU in conditions else None
    folder = None
    if path is not None:
        folder = _run_folder(trainer, run, conditions, path, best_by if keep_best else None, keep_checkpoints)
    with folder or nullcontext():
        if folder:
            _begin_record(folder, trainer, to_log)
        limit = trainer.stopping_at(
            conditions.get("timesteps_total", math.inf), EVALUATION_INTERVAL if greedy_goal else None
        )
        result: TrainResult | None = None
        ended_by, parallel = None, False
        with StopRequest(trainer.stop_waiting, display.stopping) as request, display, limit:
            while (iterated := _unless_ended(trainer, folder, improvement, request, result)) is not None:
                result, parallel = iterated
                display.update(result, left.estimate(result))
                if folder:
                    folder.log(result)
                watch.update(result)
                ended_by = reached(conditions, result)
                if ended_by or request.signal is not None:
                    break
                if folder:
                    is_due = bool(checkpoint_frequency) and trainer.iteration % checkpoint_frequency == 0
                    if is_due:
                        folder.save(trainer)
                    if not parallel:
                        folder.keep_best(trainer, result, saved=is_due)
            assert result is not None
            if folder:
                folder.save(trainer)
                folder.interrupted = not ended_by
        signalled = None if ended_by else request.signal
        # A greedy goal needs no other evaluation: the model that reached it, which may be older, is saved as the best.
        evaluated = ended_by == "evaluation_reward_mean" or (not parallel and result.get("evaluation") is not None)
        if ended_by and evaluate and trainer.can_evaluate and not evaluated:
            signalled = _evaluate_at_end(trainer, result, folder, display)
            ended_by = reached(conditions, result) or ended_by
        if folder:
            folder.keep_best(trainer, result, saved=True)
    return FitResult(
        result,
        ended_by,
        missed_goal(conditions, result),
        signalled,
        **({} if folder is None else folder.outcome()),
    )


def _improvement(trainer: Trainer, reward: str) -> Improvement:
    """Returns the counter of iterations since the best reward; iterations of a continued run count, too."""
    return Improvement(reward, () if trainer.recorded_in is None else results_until(*trainer.recorded_in))


def _unless_ended(
    trainer: Trainer,
    folder: RunFolder | None,
    improvement: Improvement | None,
    request: StopRequest,
    last: TrainResult | None,
) -> tuple[TrainResult, bool] | None:
    """As `_iterated`; None if the iteration has failed because of a signal, and there is a `last` result."""
    try:
        return _iterated(trainer, folder, improvement)
    except (Exception, KeyboardInterrupt) as error:
        if last is None or not request.explains(error):
            raise
        log.warning("The iteration failed after the signal, and does not count.", exc_info=error)
        return None


def _iterated(trainer: Trainer, folder: RunFolder | None, improvement: Improvement | None) -> tuple[TrainResult, bool]:
    """Trains for an iteration and writes its result; also returns whether the model was evaluated while it trained."""
    parallel = trainer.evaluates_while_training
    if folder and parallel:
        folder.save_candidate(trainer)
    result = trainer.train()
    if improvement is not None:
        cast("dict[str, Any]", result)[PLATEAU] = improvement.after(result)
    if folder:
        folder.append(result)  # before the result is shown
        trainer.recorded_in = folder.path.resolve(), trainer.iteration
        if parallel:
            folder.keep_best(trainer, result, saved=False)
    return result, parallel


def _checked_conditions(trainer: Trainer, stop: Mapping[str, float]) -> dict[str, float]:
    conditions = checked_stop(stop, "fit(stop=...)")
    if "evaluation_reward_mean" in conditions and not trainer.can_evaluate:
        what = "There is no environment to evaluate in."
        raise ConfigError(what, "fit(stop=...): evaluation_reward_mean", f"env={trainer.config.env!r}").expected(
            "an environment that can be stepped",
            "set env, or for a policy server evaluation_config={'env': ...}; or stop by timesteps_total, "
            "training_iteration or "
            "time_total_s",
        )
    for name, now in (
        ("timesteps_total", trainer.optimizer.steps),
        ("training_iteration", trainer.iteration),
        ("time_total_s", trainer.time_total_s),
    ):
        if now >= conditions.get(name, math.inf):
            got = f"{conditions[name]:.10g}, and the trainer is at {now:.10g}"
            expected = f"more than {now:.10g}: limits are totals, which include the run so far"
            raise ConfigError(
                "The limit is already reached before training begins.", f"fit(stop=...): {name}", got
            ).expected(expected, f"raise it; to continue for as much again: {now + conditions[name]:.10g}")
    return conditions


def _loggers(out: str | Path | None, given: Sequence[Any] | None) -> list[Logger]:
    """Returns the loggers of a run with a folder, and none for a run without one."""
    if out is None and given:
        raise ConfigError("Loggers require a run folder.", "fit(loggers=...)", f"out=None, loggers={given!r}").expected(
            "a folder, new or empty, in out", "set out, or leave loggers out"
        )
    if out is None:
        return []
    return make_loggers(DEFAULT_LOGGERS if given is None else given, "fit(loggers=...)", trusted=True)


def _check_checkpoints(out: str | Path | None, checkpoint_frequency: int, keep_checkpoints: int | None) -> None:
    _check_at_least(0, checkpoint_frequency=checkpoint_frequency)
    _check_at_least(1, keep_checkpoints=keep_checkpoints)
    if out is None and (checkpoint_frequency or keep_checkpoints):
        raise ConfigError(
            "Checkpoints require a run folder to write them into.",
            "fit(out=...)",
            f"None, with checkpoint_frequency={checkpoint_frequency}, keep_checkpoints={keep_checkpoints}",
        ).expected("a folder, new or empty", "set out, or leave checkpoint_frequency and keep_checkpoints out")


def _check_at_least(lowest: int, **given: int | None) -> None:
    for name, value in given.items():
        if value is not None and not (is_whole(value) and value >= lowest):
            raise ConfigError.out_of_range(name, f"fit({name}=...)", value, f"an integer of at least {lowest}")


def _run_folder(
    trainer: Trainer, run: str, stop: Mapping[str, float], path: Path, best_by: str | None, keep_checkpoints: int | None
) -> RunFolder:
    """Returns the folder of a new run, or of the trainer's own run, continued after the iteration of the trainer."""
    config = trainer.config.to_json()
    del config["env"]  # which may be code without an import path
    experiment = {"run": run, "env": name_of_env(trainer.config.env), "config": config, "stop": stop}
    after = trainer.iteration if is_continued(path, trainer.recorded_in, trainer.iteration) else None
    return RunFolder(path, experiment, best_by, keep_checkpoints, continues_after=after)


def _begin_record(folder: RunFolder, trainer: Trainer, loggers: Sequence[Logger]) -> None:
    """Begins the loggers, after copying the results of the trainer's earlier run if it has another folder."""
    earlier = None
    if trainer.recorded_in is not None:
        earlier, iteration = trainer.recorded_in
        if earlier != folder.path.resolve():
            folder.inherit(earlier, iteration)
    folder.begin_logging(loggers, earlier)


def _evaluate_at_end(trainer: Trainer, result: TrainResult, folder: RunFolder | None, display: Display) -> int | None:
    """Adds a greedy evaluation to the last result; returns the number of the signal that interrupted it, or None.

    If no episode has ended in the run, the evaluation might not end either, so it is left out with a warning.
    """
    if not _episodes_end(trainer, result):
        log.warning(
            "There is no final evaluation, because no episode has ended in the run: evaluation might not end. Return "
            "truncated=True from step() at a time limit, or wrap the environment in gymnasium.wrappers.TimeLimit "
            "(max_episode_steps where it is registered); or train longer. Trainer.evaluate() and `rollax evaluate` "
            "play episodes in any case."
        )
        return None
    display.evaluating(trainer.config.evaluation_num_episodes)
    try:
        with sigterm_interrupts():
            result["evaluation"] = trainer.evaluate()
    except KeyboardInterrupt as error:
        return error.number if isinstance(error, Interrupted) else int(signal.SIGINT)
    if folder:
        folder.amend(result)
    return None


def _episodes_end(trainer: Trainer, result: TrainResult) -> bool:
    """Returns whether an episode has ended or is known to end, or training does not step the evaluation environment.

    The mean length in the result also covers iterations before the checkpoint from which the run continues.
    """
    config = trainer.config
    if number_in(result, "episode_len_mean") is not None or not config.steps_the_env:
        return True
    env = config.for_evaluation().env
    spec = spec_of(env) if isinstance(env, str) else None
    return env is not config.env or (spec is not None and spec.max_episode_steps is not None)
