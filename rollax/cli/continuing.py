"""The stop conditions of a run that continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollax.errors import ConfigError
from rollax.runs.comparison import experiment_of
from rollax.runs.results import RESULTS_NAME
from rollax.runs.run_folder import CONFIG
from rollax.runs.stopping import checked_stop, ended_by

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


def refuse_continue_for(continue_for: int | None, stop: Mapping[str, float], *, resumed: bool) -> None:
    """Raises ConfigError for a `--continue-for` that is not positive, or has no effect."""
    if continue_for is None:
        return
    if not resumed:
        raise ConfigError.no_effect(
            "--continue-for", "there is no earlier run", "rollax train --continue-for", continue_for
        ).fix("write --stop-timesteps, or --resume=RUN")
    if continue_for <= 0:
        raise ConfigError.out_of_range("The number of further steps", "--continue-for", continue_for, "more than 0")
    if "timesteps_total" in stop:
        raise ConfigError.twice(
            "The limit of steps", "--continue-for and --stop-timesteps", f"{continue_for}, {stop['timesteps_total']}"
        ).fix("leave one of them out")


def stop_of_resumed(
    trainer: Trainer, run: Path, given: Mapping[str, float], continue_for: int | None
) -> Mapping[str, float]:
    """Returns the stop conditions of a trainer that continues the run in the folder `run`.

    The result has the conditions `given`, and `continue_for` more steps, in the unit of `count_steps_by`. Without
    either argument, the result is the stop conditions of the run.

    Raises:
        ConfigError: the run has ended by its own stop conditions, and no others are passed.
    """
    if continue_for is not None:
        return {**given, "timesteps_total": trainer.optimizer.steps + continue_for}
    if given or not (run / RESULTS_NAME).exists():  # without results, the checkpoint is not of a run folder
        return given
    stop = checked_stop(experiment_of(run).get("stop") or {}, f"{run / CONFIG}: stop")
    if by := ended_by(run, trainer.iteration, stop):
        raise ConfigError("The run has ended.", str(run), f"{by}, at {trainer.optimizer.steps:,} steps").expected(
            "a run that was interrupted, or other stop conditions",
            "pass --continue-for=N for N more steps, or stop conditions such as --stop-timesteps",
        )
    return stop
