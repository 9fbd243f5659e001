"""`rollax train`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollax.cli.checkpoints import names_code, newest_checkpoint, open_trainer
from rollax.cli.console import ImportOption, TracebackOption, TrustOption, import_first, readable_errors
from rollax.cli.display import make_display
from rollax.cli.experiment import Experiment, override, parse_config, read_experiment
from rollax.cli.run_folder import RunFolder, check_out, make_run_folder
from rollax.cli.stopping import StopConditions
from rollax.cli.training import (
    Outcome,
    draw_curve,
    final_evaluation,
    how_it_ended,
    title_of,
    train_until_stopped,
    where_things_are,
)
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

EVALUATION_INTERVAL = 10
"""Iterations between the evaluations that a greedy goal needs, where the user sets no interval."""
MISSED_GOAL = 3
"""The exit code for a reward goal that was not reached, with `--must-reach`."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run an experiment, apart from what it is."""

    out: Path | None = None
    resume: Path | None = None
    trust_code: bool = False
    imports: tuple[str, ...] = ()
    checkpoint_freq: int = 0
    evaluate: bool = True
    must_reach: bool = False
    quiet: bool = False


def train(
    run: Annotated[str | None, typer.Option(help="The algorithm, as `rollax list` shows it.")] = None,
    env: Annotated[str | None, typer.Option(help="A Gymnasium id, a registered name, or module:Class.")] = None,
    config: Annotated[str | None, typer.Option(metavar="JSON", help="Settings of the algorithm.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="YAML with run, env, config and stop; options override it.")
    ] = None,
    stop_reward: Annotated[float | None, typer.Option(help="Goal: mean reward of the training episodes.")] = None,
    stop_evaluation_reward: Annotated[float | None, typer.Option(help="Goal: mean reward of greedy episodes.")] = None,
    stop_timesteps: Annotated[int | None, typer.Option(help="Limit: environment steps.")] = None,
    stop_iterations: Annotated[int | None, typer.Option(help="Limit: iterations.")] = None,
    stop_time: Annotated[float | None, typer.Option(help="Limit: seconds.")] = None,
    seed: Annotated[int | None, typer.Option(help="One number that fixes the whole run.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the run; runs/<algorithm>-<env>-<date>-<n> if not given.")
    ] = None,
    checkpoint_freq: Annotated[
        int, typer.Option(min=0, help="Iterations between checkpoints; 0 saves at the end only.")
    ] = 0,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from a checkpoint, or from the newest one of a run folder.")
    ] = None,
    trust_code: TrustOption = False,
    evaluate: Annotated[bool, typer.Option(help="Evaluate greedily at the end.")] = True,
    must_reach: Annotated[
        bool, typer.Option("--must-reach", help="Exit with 3 if a limit ends the run before a reward goal.")
    ] = False,
    imports: ImportOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only how it ended.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """Train a policy. Ctrl-C saves a checkpoint and ends with exit code 130 (SIGTERM: 143)."""
    with readable_errors(traceback):
        import_first(imports)
        settings = {} if config is None else parse_config(config)
        stop = {
            "episode_reward_mean": stop_reward,
            "evaluation_reward_mean": stop_evaluation_reward,
            "timesteps_total": stop_timesteps,
            "training_iteration": stop_iterations,
            "time_total_s": stop_time,
        }
        experiment = override(
            Experiment() if file is None else read_experiment(file, trust_code=trust_code),
            run=run,
            env=env,
            config=settings if seed is None else {**settings, "seed": seed},
            stop=StopConditions.from_mapping(stop, "the --stop options"),
        )
        options = Options(out, resume, trust_code, tuple(imports or ()), checkpoint_freq, evaluate, must_reach, quiet)
        code = run_experiment(experiment, options)
    raise typer.Exit(code)


def run_experiment(experiment: Experiment, options: Options) -> int:
    """Trains, evaluates, says how it ended and where everything is, and returns the exit code."""
    check_out(options.out)
    trainer = make_trainer(experiment, options.resume, options.trust_code)
    try:
        run, env = trainer.name, trainer.config.env
        with RunFolder(make_run_folder(options.out, run, str(env))) as folder:
            settings = trainer.config.to_json()
            folder.write_config(
                {"run": run, "env": settings.pop("env"), "config": settings, "stop": experiment.stop.given}
            )
            if options.resume is not None:
                folder.inherit_results(newest_checkpoint(options.resume))
            to_open = [f"--import={name}" for name in options.imports] + ["--trust-code"] * names_code(trainer)
            display = make_display(title_of(run, env, folder.path), options.quiet)
            try:
                outcome = train_until_stopped(trainer, folder, experiment.stop, display, options.checkpoint_freq)
            except BaseException:
                draw_curve(folder, title_of(run, env))
                print("\n".join(["Training broke off.", *where_things_are(folder, to_open)]), file=sys.stderr)
                raise
            evaluation = final_evaluation(trainer) if options.evaluate and outcome.exit_code == 0 else None
            draw_curve(folder, title_of(run, env))
            print("\n".join([*how_it_ended(outcome, experiment.stop, evaluation), *where_things_are(folder, to_open)]))
        return _exit_code(outcome, experiment.stop, options.must_reach)
    finally:
        trainer.stop()


def make_trainer(experiment: Experiment, resume: Path | None, trust_code: bool) -> Trainer:
    """The trainer of an experiment, fresh or with the state of a checkpoint.

    Raises:
        ConfigError: no algorithm is named, the checkpoint is another algorithm's, or the trainer refuses the config.
    """
    config = dict(experiment.config)
    if experiment.env is not None:
        config["env"] = experiment.env
    greedy_goal = experiment.stop.evaluation_reward_mean is not None
    if resume is not None:
        trainer = open_trainer(newest_checkpoint(resume), trust_code=trust_code, **config)
        if experiment.run is not None and experiment.run.casefold() != trainer.name.casefold():
            raise ConfigError(
                "The checkpoint of another algorithm.",
                where="--run",
                got=experiment.run,
                expected=trainer.name,
                fix="leave it out",
            )
        if greedy_goal and trainer.config.evaluation_interval is None:
            raise ConfigError(
                "A greedy goal, and nothing that evaluates.",
                where="evaluation_interval",
                got=None,
                fix="""give one, as in --config='{"evaluation_interval": 10}'""",
            )
        return trainer
    if experiment.run is None:
        raise ConfigError(
            "No algorithm is named.",
            where="--run",
            expected="an algorithm that `rollax list` shows",
            fix="as in --run=PPO",
        )
    from rollax.algorithms.registry import get_trainer_class

    if greedy_goal:
        config.setdefault("evaluation_interval", EVALUATION_INTERVAL)
    return get_trainer_class(experiment.run)(config=config)


def _exit_code(outcome: Outcome, stop: StopConditions, must_reach: bool) -> int:
    return MISSED_GOAL if must_reach and outcome.reached and stop.missed_goal(outcome.result) else outcome.exit_code
