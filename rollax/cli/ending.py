"""The final output of `rollax train`: why training ended, what it reached, and the paths of its files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollax.cli.console import command_name
from rollax.runs.display import Progress, duration, shown_path
from rollax.runs.fit import FitResult
from rollax.runs.results import RESULTS_NAME, WHERE_IN_RESULT, number_in
from rollax.runs.run_folder import BEST, CHECKPOINTS, CURVE, PREFIX
from rollax.runs.stopping import StopConditions
from rollax.storage import newest


def how_it_ended(fitted: FitResult, stop: StopConditions) -> list[str]:
    """Returns the lines on why training ended and what it reached."""
    progress = Progress.of(fitted.last, None)
    reason = "interrupted"
    if fitted.reached:
        value = number_in(fitted.last, *WHERE_IN_RESULT[fitted.reached])
        reason = f"{fitted.reached} {value:.10g} reached {stop.given[fitted.reached]:.10g}"
    lines = [f"Ended:            {reason} ({progress.steps:,} steps, {duration(progress.elapsed)})"]
    if fitted.reached and fitted.missed_goal:
        lines.append("                  the reward goal was not reached")
    if fitted.last["evaluation"] is not None:
        lines.append(f"Greedy episodes:  {evaluation_line(fitted.last['evaluation'])}")
    return lines


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """Returns the results of an evaluation in one line."""
    mean, low, high = (number_in(evaluation, f"episode_reward_{which}") for which in ("mean", "min", "max"))
    if mean is None:
        return "none ended"
    return f"mean reward {mean:.2f} over {evaluation.get('episodes')} (lowest {low:.2f}, highest {high:.2f})"


def where_things_are(run: Path, to_open: Sequence[str]) -> list[str]:
    """Returns the lines on the files of a run and how to use them.

    Args:
        run: the run folder.
        to_open: the options that are required to load its checkpoint.
    """
    logs = shlex.quote(shown_path(run))
    lines = [f"TensorBoard log:  {logs}  (tensorboard --logdir {logs})"]
    if (run / CURVE).exists():
        lines.append(f"Learning curve:   {shown_path(run / CURVE)}")
    lines.append(f"Results:          {shown_path(run / RESULTS_NAME)}")
    last, best = (newest(run / folder, PREFIX) for folder in (CHECKPOINTS, BEST))
    if best is not None:
        lines.append(f"Best model:       {shown_path(best)}")
    if last is None:
        return [*lines, "Checkpoint:       none was saved"]
    checkpoint = shown_path(last)
    watch = f"{command_name()} evaluate {shlex.quote(checkpoint)} --episodes 5 --video videos/"
    watch = " ".join([watch, *map(shlex.quote, to_open)])
    return [*lines, f"Checkpoint:       {checkpoint}", f"Watch the policy: {watch}"]
