"""Comparisons of runs: groups of equal runs with different seeds, their scores, a table and learning curves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollax.config.json_form import GIVEN
from rollax.core.atomic_files import read_regular
from rollax.core.figure_files import written_to
from rollax.errors import ConfigError, RollaxError
from rollax.runs.interquartile_mean import bootstrap_interval, interquartile_mean
from rollax.runs.results import SEED_FOLDER, curve, read_results, seeds_in
from rollax.runs.run_folder import CONFIG

QUANTITIES = ("evaluation_reward_mean", "episode_reward_mean")
_POINTS = 100
_MOST_BYTES = 1 << 26  # as of the configs in a checkpoint
_MIDDLE = "interquartile mean"


@dataclass(frozen=True)
class Group:
    """Runs with equal settings in one environment, which differ in their seeds.

    Args:
        label: the name of the group.
        env: the name of the environment.
        runs: result lines of each run.
    """

    label: str
    env: str
    runs: Sequence[Sequence[Mapping[str, Any]]]

    def has(self, quantity: str) -> bool:
        """Whether each run has a value of a quantity."""
        return all(curve(results, quantity)[1] for results in self.runs)

    def scores(self, quantity: str) -> np.ndarray:
        """Returns the last value of a quantity in each run, [runs]."""
        return np.array([curve(results, quantity)[1][-1] for results in self.runs])


def groups_of(folders: Sequence[Path]) -> list[Group]:
    """Returns the groups of the runs in run folders, and in folders of several seeds.

    Runs belong to one group if they have the same algorithm, environment and config except for the seed. Which keys the
    user has set, and which have their defaults, does not matter.

    Raises:
        RollaxError: a folder has no results or no config.
        ConfigError: two runs of a group have the same seed.
    """
    found: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for run in [run for folder in folders for run in runs_in(folder)]:
        experiment = experiment_of(run)
        settings = {key: value for key, value in experiment["config"].items() if key not in ("seed", GIVEN)}
        same = json.dumps([experiment["run"], experiment["env"], settings], sort_keys=True)
        found.setdefault(same, []).append((run, experiment))
    labels = _labels([runs[0] for runs in found.values()])
    groups = []
    for label, runs in zip(labels, found.values(), strict=True):
        seeds = Counter(seed for _, experiment in runs if (seed := experiment["config"].get("seed")) is not None)
        for seed, times in seeds.items():
            if times > 1:
                raise ConfigError("Two equal runs have the same seed.", label, f"seed {seed}, {times} times").expected(
                    "runs that differ in their seeds or settings", "name each run once"
                )
        groups.append(Group(label, str(runs[0][1]["env"]), [read_results(run)[0] for run, _ in runs]))
    return groups


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folders of several seeds or of a sweep in a folder, or the folder itself if it is a run."""
    return seeds_in(folder) or [folder]


def compared_by(groups: Sequence[Group]) -> str:
    """Returns a quantity that all runs have, preferably of greedy evaluations; RollaxError if there is none."""
    for quantity in QUANTITIES:
        if all(group.has(quantity) for group in groups):
            return quantity
    raise RollaxError("A run has no ended episode.", "rollax compare", "no mean reward").expected(
        "runs with rewards", "train longer, or leave the run out"
    )


def drawn_by(groups: Sequence[Group]) -> str:
    """Returns the quantity of the curves: the first of `QUANTITIES` with several values in each run, or `compared_by`.

    By default the only greedy evaluation of a run is at its end.
    """
    runs = [results for group in groups for results in group.runs]
    several = (name for name in QUANTITIES if all(len(curve(results, name)[1]) > 1 for results in runs))
    return next(several, compared_by(groups))


def table(groups: Sequence[Group], quantity: str) -> str:
    """Returns a Markdown table of the scores of each group: interquartile mean, interval, mean, lowest and highest."""
    lines = [f"| runs | environment | seeds | {_MIDDLE} | 95 % interval | mean | lowest | highest |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for group in groups:
        scores = group.scores(quantity)
        low, high = (_number(bound) for bound in bootstrap_interval([scores]))
        interval = f"{low} to {high}" if len(scores) > 1 else "–"
        middle, mean, least, most = map(
            _number, (interquartile_mean(scores), scores.mean(), scores.min(), scores.max())
        )
        cells = (group.label, group.env, str(len(scores)), middle, interval, mean, least, most)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def aggregate(groups: Sequence[Group], quantity: str, references: Mapping[str, tuple[float, float]]) -> str:
    """Returns a Markdown table of normalized scores over all environments.

    The result is "" for a single environment, or if no label has runs in all environments. If all runs of an
    environment have the same score, and the environment has no reference, the text says so instead.

    A score x of an environment counts as (x - low) / (high - low). The interquartile mean is over the scores of all
    environments, and its bootstrap interval resamples the seeds within each environment.

    Source: Agarwal et al. (2021), arXiv:2108.13264, section 4.3.

    Args:
        references: environment -> (low, high), the scores that count as 0 and 1. For other environments, these are the
            lowest and the highest score of the compared runs.
    Raises:
        ConfigError: a reference of an environment without runs.
    """
    by_env: dict[str, dict[str, np.ndarray]] = {}
    for group in groups:
        by_env.setdefault(group.env, {})[group.label] = group.scores(quantity)
    bounds = {
        env: references.get(env, (min(map(np.min, scores.values())), max(map(np.max, scores.values()))))
        for env, scores in by_env.items()
    }
    for env in references:
        if env not in by_env:
            raise ConfigError.unknown("environment", env, by_env, "--reference")
    names = dict.fromkeys(group.label for group in groups)
    labels = [label for label in names if all(label in scores for scores in by_env.values())]
    if len(by_env) < 2 or not labels:
        return ""
    if equal := [env for env, (low, high) in bounds.items() if low == high]:
        return (
            f"All runs of {', '.join(equal)} have the same score: --reference=ENV=LOW:HIGH sets what counts as 0 and 1."
        )
    lines = [
        f"| runs | environments | scores | normalized {_MIDDLE} | 95 % interval | mean |",
        "|---|---|---|---|---|---|",
    ]
    for label in labels:
        normalized = [(by_env[env][label] - low) / (high - low) for env, (low, high) in bounds.items()]
        all_scores = np.concatenate(normalized)
        low, high = (_number(bound) for bound in bootstrap_interval(normalized))
        cells = (len(by_env), len(all_scores), _number(interquartile_mean(all_scores)), f"{low} to {high}")
        lines.append(f"| {' | '.join(map(str, (label, *cells, _number(all_scores.mean()))))} |")
    lines += ["", "| environment | counts as 0 | counts as 1 |", "|---|---|---|"]
    lines += [f"| {env} | {_number(low)} | {_number(high)} |" for env, (low, high) in bounds.items()]
    return "\n".join(lines)


def draw(groups: Sequence[Group], quantity: str, out: Path) -> None:
    """Draws the interquartile mean of each group over environment steps, with its interval, by environment.

    The suffix of `out` is the image format; ConfigError for an unknown one.
    """
    envs = list(dict.fromkeys(group.env for group in groups))
    with written_to(out, 7 * len(envs), 5, dpi=120) as figure:
        for number, env in enumerate(envs, start=1):
            axes = figure.add_subplot(1, len(envs), number)
            for color, group in enumerate(group for group in groups if group.env == env):
                steps, values = curves(group, quantity)
                marker = "." if len(steps) == 1 else ""
                axes.plot(steps, interquartile_mean(values), color=f"C{color % 10}", marker=marker, label=group.label)
                if len(values) > 1:
                    low, high = bootstrap_interval([values])
                    axes.fill_between(steps, low, high, color=f"C{color % 10}", alpha=0.2, linewidth=0)
            axes.set_title(env)
            axes.set_xlabel("environment steps")
            axes.set_ylabel(quantity.replace("_", " "))
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")


def curves(group: Group, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps [P] that all runs of a group have reached, and interpolated values of the runs there, [runs, P]."""
    points = [curve(results, quantity) for results in group.runs]
    first, last = max(steps[0] for steps, _ in points), min(steps[-1] for steps, _ in points)
    at = np.linspace(min(first, last), last, _POINTS if last > first else 1)
    return at, np.array([np.interp(at, steps, values) for steps, values in points])


def experiment_of(run: Path) -> dict[str, Any]:
    """Returns the content of the `config.json` of a run folder."""
    try:
        experiment = json.loads(read_regular(run / CONFIG, _MOST_BYTES))
        if isinstance(experiment["config"], dict) and {"run", "env"} <= experiment.keys():
            return experiment
        got = "other keys"
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        got = str(error)
    raise RollaxError("This is not a run folder, or its config cannot be read.", str(run / CONFIG), got).expected(
        "a run folder, or a folder of several seeds", "check the path"
    )


def _labels(firsts: Sequence[tuple[Path, Mapping[str, Any]]]) -> Iterator[str]:
    """Yields a label of each group, from the first run of the group.

    The label is the algorithm, or the name of the folder if other groups have the same algorithm and environment, or
    the path if other groups in the environment have a folder of this name.
    """
    kinds = Counter((experiment["run"], experiment["env"]) for _, experiment in firsts)
    names = [(run.name.startswith(SEED_FOLDER) and run.parent.name) or run.name for run, _ in firsts]
    times = Counter((name, experiment["env"]) for name, (_, experiment) in zip(names, firsts, strict=True))
    for name, (run, experiment) in zip(names, firsts, strict=True):
        if kinds[experiment["run"], experiment["env"]] == 1:
            yield experiment["run"]
        else:
            yield name if times[name, experiment["env"]] == 1 else str(run)


def _number(value: Any) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
