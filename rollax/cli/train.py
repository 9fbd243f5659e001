"""`rollax train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.completion import complete_algorithm, complete_env, complete_run
from rollax.cli.console import ImportOption, TracebackOption, TrustOption, readable_errors
from rollax.cli.training_options import (
    CheckpointFrequency,
    ConfigOption,
    ContinueFor,
    DiagnoseOption,
    EvaluateOption,
    HalvingOption,
    KeepBest,
    KeepCheckpoints,
    LoggerOption,
    MustReach,
    ParallelOption,
    QuietOption,
    SeedsOption,
    SettingsOption,
    StopEvaluationReward,
    StopIterations,
    StopPlateau,
    StopReward,
    StopTime,
    StopTimesteps,
    SweepOption,
)
from rollax.core.importing import named_by_caller


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
