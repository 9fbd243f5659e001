"""`rollax train` and `rollax resume`, with their options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rollax.cli.completion import complete_algorithm, complete_env, complete_run, complete_setting
from rollax.cli.console import (
    EnvOption,
    ImportOption,
    RunOption,
    TracebackOption,
    TrustOption,
    readable_errors,
    whole_number,
)
from rollax.core.importing import named_by_caller
from rollax.errors import ConfigError

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


def train(
    run: Annotated[
        str | None,
        typer.Option(
            parser=named_by_caller,
            metavar="ALGORITHM",
            help="The algorithm, as `rollax list` shows it, or module:Class of your own.",
            autocompletion=complete_algorithm,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            parser=named_by_caller,
            metavar="ENV",
            help="A Gymnasium id, a registered name, or module:Class.",
            autocompletion=complete_env,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Defaults of the algorithm in another library: rllib. Settings override them."
        ),
    ] = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="DATA", help="Recorded data to learn from: a folder, file or pattern; may be repeated."
        ),
    ] = None,
    then_online: Annotated[
        bool, typer.Option("--then-online", help="Learn from the data first, then in the environment too.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="YAML with run, env, config, stop, preset, loggers; options override it.",
        ),
    ] = None,
    stop_reward: StopReward = None,
    stop_evaluation_reward: StopEvaluationReward = None,
    stop_timesteps: StopTimesteps = None,
    stop_iterations: StopIterations = None,
    stop_time: StopTime = None,
    stop_plateau: StopPlateau = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of environments, weights and sampling.")
    ] = None,
    seeds: SeedsOption = None,
    parallel: ParallelOption = None,
    sweep: SweepOption = None,
    halving: HalvingOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A new folder for the run, or the folder of --resume; by default runs/<algorithm>-<env>-<date>-<n>.",
        ),
    ] = None,
    checkpoint_frequency: CheckpointFrequency = 0,
    keep_checkpoints: KeepCheckpoints = None,
    keep_best: KeepBest = True,
    logger: LoggerOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue from a checkpoint, or from the newest one of a run folder.",
            autocompletion=complete_run,
        ),
    ] = None,
    continue_for: ContinueFor = None,
    trust_code: TrustOption = False,
    evaluate: EvaluateOption = True,
    diagnose: DiagnoseOption = True,
    must_reach: MustReach = False,
    imports: ImportOption = None,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Train a policy. Ctrl-C saves a checkpoint and ends with exit code 130 (SIGTERM: 143)."""
    options = dict(locals())  # unchanged arguments, for the processes of several runs
    with readable_errors(traceback, imports):
        from rollax.cli.training import train_by  # loaded only where it runs: completions and --help are fast

        raise typer.Exit(train_by(train, options))


def resume(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)],
    continue_for: ContinueFor = None,
    config: ConfigOption = None,
    settings: SettingsOption = None,
    env: EnvOption = None,
    stop_reward: StopReward = None,
    stop_evaluation_reward: StopEvaluationReward = None,
    stop_timesteps: StopTimesteps = None,
    stop_iterations: StopIterations = None,
    stop_time: StopTime = None,
    stop_plateau: StopPlateau = None,
    checkpoint_frequency: CheckpointFrequency = 0,
    keep_checkpoints: KeepCheckpoints = None,
    keep_best: KeepBest = True,
    logger: LoggerOption = None,
    run: RunOption = None,
    trust_code: TrustOption = False,
    evaluate: EvaluateOption = True,
    diagnose: DiagnoseOption = True,
    must_reach: MustReach = False,
    imports: ImportOption = None,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Continue a run in its folder, from its newest checkpoint: `rollax train --resume=RUN --out=RUN`.

    The stop conditions of the run apply, unless you pass others or --continue-for.
    """
    options: dict[str, Any] = dict(locals())
    del options["run_folder"]
    from rollax.runs.results import RESULTS_NAME, seeds_in

    with readable_errors(traceback):
        if not os.path.exists(run_folder / RESULTS_NAME):
            fix = "check the path; `rollax train --resume=CHECKPOINT` continues from a checkpoint in a new folder"
            if seeds := seeds_in(run_folder):
                fix = f"repeat the command `rollax train` with the same --out, or pass one of the runs: {seeds[0]}"
            raise ConfigError.is_not("This", "a run folder", "rollax resume", str(run_folder)).expected(
                f"a folder with a {RESULTS_NAME}", fix
            )
    train(resume=run_folder, out=run_folder, **options)
