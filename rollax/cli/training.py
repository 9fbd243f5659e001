"""The training run behind `rollax train`: iterations until a stop condition or Ctrl-C, and what is left behind."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.cli.console import command_name, shown_path
from rollax.cli.display import Display, Progress, duration
from rollax.cli.interrupt import StopRequest
from rollax.cli.plot import draw_curves
from rollax.cli.results import number_in, read_results
from rollax.cli.run_folder import RunFolder
from rollax.cli.stopping import WHERE_IN_RESULT, StopConditions, TimeLeft
from rollax.errors import RollaxError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How training ended.

    Args:
        result: the last result.
        reached: the stop condition that ended it; None if a signal did.
        exit_code: 0, or 128 + the signal.
    """

    result: Mapping[str, Any]
    reached: str | None
    exit_code: int


def train_until_stopped(
    trainer: Trainer, folder: RunFolder, stop: StopConditions, display: Display, checkpoint_freq: int
) -> Outcome:
    """Trains until `stop` or a signal, and saves a checkpoint at the end.

    Each result is on disk before it is shown. An error in an iteration leaves through here, with the results and the
    checkpoints made so far in place.

    Args:
        trainer: runs the iterations.
        folder: takes results and checkpoints.
        stop: when to end.
        display: shows progress.
        checkpoint_freq: iterations between checkpoints; 0 for the last one only.
    """
    left = TimeLeft(stop)
    with StopRequest(announce=display.stopping) as request, display:
        while True:
            result = trainer.train()
            folder.append(result)
            progress = Progress.of(result, left.estimate(result))
            display.update(progress)
            folder.log_scalars(result)
            reached = stop.reached(result)
            if reached or request.signal is not None:
                break
            if checkpoint_freq and progress.iteration % checkpoint_freq == 0:
                folder.save(trainer, progress.iteration)
        folder.save(trainer, progress.iteration)
    return Outcome(result, reached, 0 if reached else request.exit_code)


def final_evaluation(trainer: Trainer) -> Mapping[str, Any] | None:
    """A greedy evaluation after training, or None if Ctrl-C cut it short."""
    try:
        return trainer.evaluate()
    except KeyboardInterrupt:
        return None


def draw_curve(folder: RunFolder, title: str) -> None:
    """Draws the run's own learning curve, if there is a result to draw.

    A picture that cannot be written (a full disk, say) must not hide how training ended, so that is only reported.
    """
    try:
        results, _ = read_results(folder.path)
        draw_curves({"training episodes": results}, folder.curve_path, title)
    except RollaxError:
        return
    except OSError as error:
        print(f"The learning curve was not drawn: {error}", file=sys.stderr)


def how_it_ended(outcome: Outcome, stop: StopConditions, evaluation: Mapping[str, Any] | None) -> list[str]:
    """The lines that say why training ended and what was reached."""
    progress = Progress.of(outcome.result, None)
    reason = "interrupted"
    if outcome.reached:
        value = number_in(outcome.result, *WHERE_IN_RESULT[outcome.reached])
        reason = f"{outcome.reached} {value:.10g} reached {stop.given[outcome.reached]:.10g}"
    lines = [f"Ended:            {reason} ({progress.steps:,} steps, {duration(progress.elapsed)})"]
    if outcome.reached and stop.missed_goal(outcome.result):
        lines.append("                  the reward goal was not reached")
    if evaluation is not None:
        lines.append(f"Greedy episodes:  {evaluation_line(evaluation)}")
    return lines


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """What an evaluation gave, in one line."""
    mean, low, high = (number_in(evaluation, f"episode_reward_{which}") for which in ("mean", "min", "max"))
    if mean is None:
        return "none ended"
    return f"mean reward {mean:.2f} over {evaluation.get('episodes')} (lowest {low:.2f}, highest {high:.2f})"


def where_things_are(folder: RunFolder, to_open: Sequence[str]) -> list[str]:
    """The lines that say what the run left behind, and how to use it.

    Args:
        folder: of the run.
        to_open: the options that opening its checkpoint takes.
    """
    logs = shlex.quote(shown_path(folder.path))
    lines = [f"TensorBoard log:  {logs}  (tensorboard --logdir {logs})"]
    if folder.curve_path.exists():
        lines.append(f"Learning curve:   {shown_path(folder.curve_path)}")
    lines.append(f"Results:          {shown_path(folder.results_path)}")
    if folder.last_checkpoint is None:
        return [*lines, "Checkpoint:       none was saved"]
    checkpoint = shown_path(folder.last_checkpoint)
    watch = f"{command_name()} evaluate {shlex.quote(checkpoint)} --episodes 5 --video videos/"
    watch = " ".join([watch, *map(shlex.quote, to_open)])
    return [*lines, f"Checkpoint:       {checkpoint}", f"Watch the policy: {watch}"]


def title_of(run: str, env: Any, path: Path | None = None) -> str:
    """One line that names a run."""
    return f"{run} on {env}" + ("" if path is None else f"  →  {shown_path(path)}")
