"""What `rollax tune` prints: the search space, a line for each trial, and a table of the best trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollax.runs.display import duration
from rollax.tune.record import TrialResult
from rollax.tune.settings import Settings

_MOST_ROWS = 5
_MOST_LETTERS = 200


def settings_line(settings: Settings) -> str:
    """Returns the lines about the algorithm, the environment and the search space."""
    keys = [f"  {key}: {distribution.in_words()}" for key, distribution in settings.space.items()]
    return "\n".join([f"{settings.trainer_class.name} on {settings.env}, searching", *keys])


def trial_line(trial: TrialResult, settings: Settings) -> str:
    """Returns the line about a trial that has ended."""
    values = "  ".join(f"{key}={_text(value)}" for key, value in trial.values.items())
    parts = settings.options.evaluations
    match trial.state:
        case "finished":
            what = f"score {trial.score:.5g}"
        case "pruned":
            part, score = max(trial.scores.items(), default=(0, float("nan")))
            what = f"pruned at {part}/{parts} with {score:.5g}"
        case _:
            what = "failed"
    line = f"trial {trial.number}  {what}  {values}  ({duration(trial.seconds or 0)})"
    if trial.reason is not None:
        reason = " ".join(trial.reason.split())
        line += f"\n  {reason[:_MOST_LETTERS]}{'…' if len(reason) > _MOST_LETTERS else ''}"
    return line


def summary(ranked: Sequence[TrialResult], importances: Mapping[str, float]) -> str:
    """Returns the table of the best trials in Markdown, and the importance of the keys."""
    if not ranked:
        return "No trial has finished."
    keys = list(ranked[0].values)
    rows = [["trial", "score", *keys], ["---"] * (len(keys) + 2)]
    rows += [
        [str(trial.number), f"{trial.score:.5g}", *(_text(trial.values[key]) for key in keys)]
        for trial in ranked[:_MOST_ROWS]
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if importances:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in importances.items())
        lines += ["", f"Importance: {shares}"]
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
