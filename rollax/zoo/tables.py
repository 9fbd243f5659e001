"""Texts of the zoo: rows of its table, descriptions of entries, verdicts."""

from __future__ import annotations

from statistics import stdev

from rollax.zoo.entry import Entry
from rollax.zoo.interval import prediction_interval
from rollax.zoo.verifying import Verified

COLUMNS = ("environment", "algorithm", "score", "published", "steps", "CPU time", "seeds")


def row(entry: Entry) -> tuple[str, ...]:
    """Returns the cells of an entry below `COLUMNS`.

    The score is the mean over the seeds, with its standard deviation if there are several; steps and CPU time are the
    largest of all seeds.
    """
    figures, published = entry.figures, entry.about.published
    deviation = f" ± {stdev(figures.scores):.2g}" if len(figures.scores) > 1 else ""
    return (
        entry.env,
        entry.algorithm,
        f"{_short(figures.score)}{deviation}",
        "–" if published is None else f"{_short(published.score)} at {_thousands(published.steps)}",
        _thousands(max(result.steps for result in figures.seeds)),
        _time(max(result.cpu_seconds for result in figures.seeds)),
        str(len(figures.seeds)),
    )


def description(entry: Entry, command: str) -> str:
    """Returns what `rollax zoo show` prints; `command` is the command line of the zoo, `rollax zoo`."""
    figures, published = entry.figures, entry.about.published
    text, _, _ = entry.path.read_text(encoding="utf-8").partition("\nmeasured:\n")
    lines = [text.rstrip(), "", f"Score: {_short(figures.score)}, mean of {len(figures.seeds)} seeds, each of "]
    lines[-1] += f"{figures.episodes} greedy episodes after training"
    for result in figures.seeds:
        best = max(reward for _, reward in result.curve)
        lines.append(
            f"  seed {result.seed}: {_short(result.score)} after {result.steps:,} steps in {_time(result.seconds)} "
            f"({_time(result.cpu_seconds)} of CPU time), "
            f"best evaluation {_short(best)}, weights {result.weights}"
        )
        points = ", ".join(f"{_thousands(steps)}: {_short(reward)}" for steps, reward in result.curve)
        lines.append(f"    {points}")
    if len(figures.scores) > 1:
        interval = prediction_interval(figures.scores, 1, figures.learned)
        lines.append(f"  a further seed: {_short(interval.low)} to {_short(interval.high)} with a probability of 95 %")
    if published is not None:
        lines.append(f"Published: {_short(published.score)} after {published.steps:,} steps, {published.source}")
    kind = ", ".join(f"{name} {value}" for name, value in figures.machine.items())
    packages = ", ".join(f"{name} {value}" for name, value in figures.versions.items())
    lines += [f"Measured: {figures.date}, {kind}", f"  {packages}", f"  {figures.command}", ""]
    lines += [f"{command} {action} {entry.in_commands}" for action in ("train", "play", "verify")]
    return "\n".join(lines)


def verdict(verified: Verified) -> str:
    """Returns the lines that `rollax zoo verify` ends with."""
    lines = []
    if verified.reproduced:
        lines.append("Bit for bit the same as measured.")
    elif verified.different:
        lines.append("Bits cannot be compared here, because machine or versions are different:")
        lines += [f"  {difference}" for difference in verified.different]
    else:
        lines.append("The bits are different, although machine and versions are the same: rollax has changed.")
    if not verified.same_steps:
        lines.append("The number of steps is different.")
    if verified.value is not None and verified.interval is not None:
        low, high = map(_short, verified.interval)
        quantity = "Score" if verified.whole else "Mean reward of the training episodes so far"
        place = "inside" if verified.inside else "outside"
        lines.append(f"{quantity}: {_short(verified.value)}, {place} of the interval {low} to {high}.")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _thousands(steps: int) -> str:
    if steps >= 1_000_000:
        return f"{steps / 1_000_000:.3g}M"
    return f"{steps / 1000:.3g}k" if steps >= 1000 else str(steps)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
