"""The options of the commands that train, most of which `train` and `resume` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from rollax.cli.completion import complete_setting
from rollax.cli.console import whole_number

ConfigOption = Annotated[str | None, typer.Option(metavar="JSON", help="Settings of the algorithm, as a JSON object.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting, as in lr=1e-4 or model.fcnet_hiddens=[64,64]; may be repeated.",
        autocompletion=complete_setting,
    ),
]
StopReward = Annotated[float | None, typer.Option(metavar="REWARD", help="Goal: mean reward of the training episodes.")]
StopEvaluationReward = Annotated[
    float | None, typer.Option(metavar="REWARD", help="Goal: mean reward of greedy episodes.")
]
StopTimesteps = Annotated[
    int | None, typer.Option(metavar="STEPS", parser=whole_number, help="Limit: environment steps.")
]
StopIterations = Annotated[
    int | None, typer.Option(metavar="ITERATIONS", parser=whole_number, help="Limit: iterations.")
]
StopTime = Annotated[float | None, typer.Option(metavar="SECONDS", help="Limit: seconds.")]
StopPlateau = Annotated[
    int | None,
    typer.Option(metavar="ITERATIONS", parser=whole_number, help="Limit: iterations without a better reward."),
]
ContinueFor = Annotated[
    int | None,
    typer.Option(metavar="STEPS", parser=whole_number, help="Limit: further environment steps after the checkpoint."),
]
CheckpointFrequency = Annotated[
    int, typer.Option(min=0, metavar="ITERATIONS", help="Iterations between checkpoints; 0 saves at the end only.")
]
KeepCheckpoints = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Keep only the last N checkpoints; by default all.")
]
KeepBest = Annotated[bool, typer.Option(help="Keep the best model too.")]
LoggerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        metavar="NAME[:KEY=VALUE,...]",
        help="tensorboard (the default), csv, jsonl, wandb, mlflow, or module:Class; may be repeated.",
    ),
]
EvaluateOption = Annotated[bool, typer.Option(help="Evaluate greedily at the end.")]
DiagnoseOption = Annotated[bool, typer.Option(help="Warn of what `rollax doctor` finds while the run goes on.")]
MustReach = Annotated[
    bool, typer.Option("--must-reach", help="Exit with 3 if a limit ends the run before a reward goal.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show only the outcome.")]

SeedsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of runs with different seeds, from --seed or 0 on, in one folder."),
]
ParallelOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of runs of --seeds and --sweep that train at the same time, each in a process; by default 1, but "
        "runs of an environment in JAX train together in one process.",
    ),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="A run for each value: lr=1e-4..1e-2:log:16, gamma=0.9..0.99:5 or lr=1e-3,3e-3; several keys make a grid.",
    ),
]
HalvingOption = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        parser=whole_number,
        help="Successive halving: the better half of the settings goes on after STEPS, 2×STEPS, 4×STEPS, and so on.",
    ),
]


def stop_of_options(
    reward: float | None,
    evaluation_reward: float | None,
    timesteps: int | None,
    iterations: int | None,
    time_s: float | None,
    plateau: int | None,
) -> Mapping[str, float]:
    """Returns the stop conditions of the options that are not None; ConfigError for a wrong value."""
    from rollax.runs.stopping import checked_stop

    stop = {
        "--stop-reward": ("episode_reward_mean", reward),
        "--stop-evaluation-reward": ("evaluation_reward_mean", evaluation_reward),
        "--stop-timesteps": ("timesteps_total", timesteps),
        "--stop-iterations": ("training_iteration", iterations),
        "--stop-time": ("time_total_s", time_s),
        "--stop-plateau": ("iterations_without_improvement", plateau),
    }
    return checked_stop(dict(stop.values()), {name: flag for flag, (name, _) in stop.items()})
