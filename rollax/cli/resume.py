"""`rollax resume`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.completion import complete_run
from rollax.cli.console import EnvOption, ImportOption, RunOption, TracebackOption, TrustOption, readable_errors
from rollax.cli.train import train
from rollax.cli.training_options import (
    CheckpointFrequency,
    ConfigOption,
    ContinueFor,
    DiagnoseOption,
    EvaluateOption,
    KeepBest,
    KeepCheckpoints,
    LoggerOption,
    MustReach,
    QuietOption,
    SettingsOption,
    StopEvaluationReward,
    StopIterations,
    StopPlateau,
    StopReward,
    StopTime,
    StopTimesteps,
)
from rollax.errors import ConfigError


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
    from rollax.runs.results import RESULTS_NAME, seeds_in

    with readable_errors(traceback):
        if not os.path.exists(run_folder / RESULTS_NAME):
            fix = "check the path; `rollax train --resume=CHECKPOINT` continues from a checkpoint in a new folder"
            if seeds := seeds_in(run_folder):
                fix = f"repeat the command `rollax train` with the same --out, or pass one of the runs: {seeds[0]}"
            raise ConfigError.is_not("This", "a run folder", "rollax resume", str(run_folder)).expected(
                f"a folder with a {RESULTS_NAME}", fix
            )
    train(
        resume=run_folder,
        out=run_folder,
        continue_for=continue_for,
        config=config,
        settings=settings,
        env=env,
        stop_reward=stop_reward,
        stop_evaluation_reward=stop_evaluation_reward,
        stop_timesteps=stop_timesteps,
        stop_iterations=stop_iterations,
        stop_time=stop_time,
        stop_plateau=stop_plateau,
        checkpoint_frequency=checkpoint_frequency,
        keep_checkpoints=keep_checkpoints,
        keep_best=keep_best,
        logger=logger,
        run=run,
        trust_code=trust_code,
        evaluate=evaluate,
        diagnose=diagnose,
        must_reach=must_reach,
        imports=imports,
        quiet=quiet,
        traceback=traceback,
    )
