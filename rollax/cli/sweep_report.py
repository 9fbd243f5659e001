"""What `rollax train` reports at the end of many runs: a table of settings, and the best one as an experiment file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollax.cli.console import command_name
from rollax.config.json_form import encode_values, requires_trust
from rollax.core.atomic_files import named_write_errors, replace_file
from rollax.many.sweep import Setting
from rollax.runs.comparison import QUANTITIES, Group, experiment_of, table
from rollax.runs.display import shown_path
from rollax.runs.experiment import Experiment
from rollax.runs.interquartile_mean import interquartile_mean
from rollax.runs.results import read_results, to_json

STOPPED_NAME, BEST_NAME = "stopped.json", "best.yaml"


@dataclass(frozen=True)
class Standing:
    """The result of one setting.

    Args:
        runs: the run folders of the setting.
        stopped_at: the rung of successive halving at which the setting was stopped; None if it trained to the end.
        diverged: whether a run had numbers that are not finite.
    """

    setting: Setting
    runs: tuple[Path, ...]
    stopped_at: int | None
    diverged: bool


def report(
    standings: Sequence[Standing], experiment: Experiment, folder: Path | None, imports: Sequence[str] = ()
) -> None:
    """Prints the table of scores; with the folder of a sweep also ranks settings, and writes the best one there.

    Settings rank by the rung at which they were stopped, the latest first, and then by their interquartile mean.
    `imports` are the modules of the option `--import`.
    """
    groups = {standing: _group(standing, experiment) for standing in standings if not standing.diverged}
    quantity = next((name for name in QUANTITIES if all(group.has(name) for group in groups.values())), QUANTITIES[-1])
    scored = {standing: group for standing, group in groups.items() if group.has(quantity)}
    best_first = sorted(
        scored,
        key=lambda standing: (
            -(standing.stopped_at or float("inf")),
            -float(interquartile_mean(scored[standing].scores(quantity))),
        ),
    )
    if best_first:
        print(f"\n{table([scored[standing] for standing in best_first], quantity)}")
    if folder is None:
        return
    print(f"\nScores are the last {quantity} of each run.")
    for standing in best_first:
        if standing.stopped_at is not None:
            print(f"Stopped by successive halving after {standing.stopped_at:,} steps: {standing.setting.name}")
    for standing in standings:
        if standing not in scored:
            why = "Numbers that are not finite" if standing.diverged else "No episode has ended"
            print(f"{why}: {standing.setting.name}")
    if best_first:
        path = folder / BEST_NAME
        write_text(path, best_file(best_first[0].setting, experiment, len(standings)))
        to_train = shlex.join(["train", "-f", shown_path(path), *_options(experiment, imports)])
        print(f"Best:   {best_first[0].setting.name}  (train: {command_name()} {to_train})")
        print("        The best of many settings is optimistic: measure it with other seeds.")


def _options(experiment: Experiment, imports: Sequence[str]) -> list[str]:
    """The options that the file of an experiment requires: it is not trusted to name code or a cluster."""
    trusted = ":" in (experiment.run or "")
    trusted = trusted or requires_trust(encode_values({**experiment.config, "env": experiment.env}))
    return [*(f"--import={name}" for name in imports), *(["--trust-code"] if trusted else [])]


def best_file(setting: Setting, experiment: Experiment, number: int) -> str:
    """Returns the experiment file of a setting."""
    from rollax.tune.settings import as_yaml  # loaded only where they are used
    from rollax.tune.space import with_values

    config: Mapping[str, Any] = {key: value for key, value in experiment.config.items() if key != "seed"}
    if experiment.given is not None:  # a stored config has all keys, `given` those that were set
        config = {key: value for key, value in config.items() if key in experiment.given}
    sections = {
        "run": experiment.run,
        "env": None if experiment.env is None else encode_values({"env": experiment.env})["env"],
        "preset": experiment.preset,
        "config": encode_values(with_values(config, dict(setting.values))),
        "stop": dict(experiment.stop),
        "loggers": experiment.loggers,
    }
    comment = f"# Found by `rollax train --sweep`: the best of {number} settings, {setting.name}.\n"
    return comment + as_yaml({name: section for name, section in sections.items() if section})


def write_stopped(
    run: Path, rung: int, quantity: str, score: float | None, place: int, settings: int, kept: int
) -> None:
    """Writes into a run folder why successive halving stopped the run."""
    why = {
        "stopped_by": "successive halving",
        "timesteps_total": rung,
        "quantity": quantity,
        "score": score,
        "place": place,
        "of": settings,
        "kept": kept,
    }
    write_text(run / STOPPED_NAME, to_json(why, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file of a sweep; RollaxError if the disk fails."""
    with named_write_errors("A file of the runs", path):
        replace_file(path, text.encode())


def _group(standing: Standing, experiment: Experiment) -> Group:
    """Returns the runs of a setting, named after the setting, or after the algorithm if there is only one setting."""
    label = standing.setting.name or str(experiment_of(standing.runs[0])["run"])
    env = experiment_of(standing.runs[0])["env"]
    return Group(label, str(env), [read_results(run)[0] for run in standing.runs])
