"""`rollax train`."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollax.algorithms.named_trainers import trainer_class_named
from rollax.cli.checkpoints import names_code, open_trainer
from rollax.cli.completion import complete_algorithm, complete_env, complete_run
from rollax.cli.console import (
    MISSED_GOAL,
    SIGNALLED,
    ImportOption,
    TracebackOption,
    TrustOption,
    command_name,
    estimate_lines,
    evaluation_line,
    readable_errors,
)
from rollax.cli.continuing import refuse_continue_for, stop_of_resumed
from rollax.cli.experiment import parse_config, parse_loggers, parse_settings
from rollax.cli.many_runs import check_sweep, refuse_many, train_many
from rollax.cli.planned_runs import PlannedRun
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
    stop_of_options,
)
from rollax.config.json_form import decode_config
from rollax.config.presets import preset
from rollax.config.trainer import config_of_values
from rollax.core.atomic_files import absolute
from rollax.core.importing import named_by_caller
from rollax.core.storage import newest
from rollax.errors import ConfigError
from rollax.many.sweep import parse_sweep
from rollax.runs.display import cells, shown_path
from rollax.runs.experiment import Experiment, merged, override, read_experiment
from rollax.runs.loggers.table import make_loggers
from rollax.runs.loggers.tensorboard import EVENTS
from rollax.runs.results import RESULTS_NAME, WHERE_IN_RESULT, number_in
from rollax.runs.run_folder import BEST, CHECKPOINTS, CURVE, PREFIX, check_empty, newest_checkpoint
from rollax.runs.run_lock import refuse_used
from rollax.runs.stopping import DONE

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.runs.fit import FitResult


def train(
    run: Annotated[
        str | None,
        typer.Option(
            parser=named_by_caller,
            metavar="TEXT",
            help="The algorithm, as `rollax list` shows it, or module:Class of your own.",
            autocompletion=complete_algorithm,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            parser=named_by_caller,
            metavar="TEXT",
            help="A Gymnasium id, a registered name, or module:Class.",
            autocompletion=complete_env,
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Defaults of the algorithm in another library: rllib. Settings override them.")
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
        typer.Option("--file", "-f", help="YAML with run, env, config, stop, preset, loggers; options override it."),
    ] = None,
    stop_reward: StopReward = None,
    stop_evaluation_reward: StopEvaluationReward = None,
    stop_timesteps: StopTimesteps = None,
    stop_iterations: StopIterations = None,
    stop_time: StopTime = None,
    stop_plateau: StopPlateau = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of environments, weights and sampling.")] = None,
    seeds: SeedsOption = None,
    parallel: ParallelOption = None,
    sweep: SweepOption = None,
    halving: HalvingOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for the run, or that of --resume; by default runs/<algorithm>-<env>-<date>-<n>."
        ),
    ] = None,
    checkpoint_frequency: CheckpointFrequency = 0,
    keep_checkpoints: KeepCheckpoints = None,
    keep_best: KeepBest = True,
    logger: LoggerOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue from a checkpoint, or from the newest one of a run folder.", autocompletion=complete_run
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
    options = dict(locals())  # unchanged arguments, for the processes of several seeds
    with readable_errors(traceback, imports):
        given = merged({} if config is None else parse_config(config), parse_settings(settings or ()))
        data = _given_once("input", input_[0] if input_ and len(input_) == 1 else input_, given)
        online = _given_once("then_online", True if then_online else None, given)
        given |= {key: value for key, value in (("input", data), ("then_online", online)) if value is not None}
        stop = stop_of_options(
            stop_reward, stop_evaluation_reward, stop_timesteps, stop_iterations, stop_time, stop_plateau
        )
        experiment = override(
            Experiment() if file is None else read_experiment(file, trust_code=trust_code),
            run=run,
            env=_given_once("env", env, given),
            config=given if (seed := _given_once("seed", seed, given)) is None else {**given, "seed": seed},
            stop=stop,
            preset=preset,
        )
        if resume is not None and preset is None:
            experiment = dataclasses.replace(experiment, preset=None)  # the checkpoint has the keys of a file's preset
        named, trusted = (parse_loggers(logger), True) if logger else (experiment.loggers, trust_code)
        where = "--logger" if logger else f"{file}: loggers"

        def fit_options(progress: str) -> dict[str, Any]:
            return {
                "loggers": None if named is None else make_loggers(named, where, trusted=trusted),
                "checkpoint_frequency": checkpoint_frequency,
                "keep_checkpoints": keep_checkpoints,
                "keep_best": keep_best,
                "evaluate": evaluate,
                "diagnose": diagnose,
                "progress": progress,
            }

        fit = fit_options("none" if quiet else "auto")
        refuse_many(options)
        if seeds is not None or sweep:
            grid = parse_sweep(sweep or ())
            check_sweep(grid, experiment.run, given)
            kind = "sweep" if sweep else "seeds"
            folder = new_folder(f"{experiment.run}-{experiment.env or 'data'}-{kind}") if out is None else out
            first = experiment.config.get("seed") or 0
            here = _InThisProcess(experiment, trust_code, lambda: fit_options("none"))
            numbers = range(first, first + (seeds or 1))
            raise typer.Exit(train_many(train, options, experiment, folder, grid, numbers, here))
        refuse_continue_for(continue_for, experiment.stop, resumed=resume is not None)
        earlier = None if resume is None else newest_checkpoint(resume).resolve().parent.parent
        if out is not None and (earlier is None or out.resolve() != earlier):
            check_empty(out, "--out", f"rollax resume {out}")
        with make_trainer(experiment, resume, trust_code) as trainer:
            if earlier is not None:
                stop = stop_of_resumed(trainer, earlier, experiment.stop, continue_for)
                experiment = dataclasses.replace(experiment, stop=stop)
            fitted = run_experiment(trainer, experiment, out, imports or (), fit)
    if fitted.signal is not None:
        raise typer.Exit(SIGNALLED + fitted.signal)
    raise typer.Exit(MISSED_GOAL if must_reach and fitted.missed_goal else 0)


@dataclasses.dataclass(frozen=True)
class _InThisProcess:
    """A `Training`; `fit_options` makes keyword arguments of `Trainer.fit`, whose loggers are for one run."""

    experiment: Experiment
    trust_code: bool
    fit_options: Callable[[], dict[str, Any]]

    def make(self, run: PlannedRun, resume: Path | None) -> Trainer:
        config = {**parse_settings(run.setting.texts), "seed": run.seed}
        experiment = override(self.experiment, run=None, env=None, config=config, stop={})
        if resume is not None:  # the checkpoint has the keys of the preset
            experiment = dataclasses.replace(experiment, preset=None)
        return make_trainer(experiment, resume, self.trust_code)

    def fit(self, trainer: Trainer, run: PlannedRun, resume: Path | None, stop: Mapping[str, float]) -> FitResult:
        if resume is not None:
            stop = stop_of_resumed(trainer, resume, stop, None)
        return trainer.fit(stop, absolute(run.folder, ConfigError), **self.fit_options())


def run_experiment(
    trainer: Trainer, experiment: Experiment, out: Path | None, imports: Sequence[str], fit: dict[str, Any]
) -> FitResult:
    """Trains, and prints the outcome and the paths; `fit` has the keyword arguments of `Trainer.fit`."""
    if is_new := out is None:
        out = new_folder(f"{trainer.name}-{trainer.config.env or 'data'}")
    out = absolute(out, ConfigError)  # environments may change the working directory
    refuse_used(out, "--out")  # before training: otherwise the message in `except` would list the files of another run
    to_open = [f"--import={name}" for name in imports] + ["--trust-code"] * names_code(trainer)
    to_open += [f"--run={experiment.run}"] if ":" in (experiment.run or "") else []
    continues, before = (out / RESULTS_NAME).exists(), trainer.iteration
    try:
        fitted = trainer.fit(experiment.stop, out, **fit)
    except BaseException:
        with suppress(OSError):  # a folder that is missing or cannot be read
            if continues and trainer.iteration == before:
                pass  # the folder has only the files of the run so far
            elif os.listdir(out):
                print("\n".join(["Training was aborted.", *_where_things_are(out, to_open)]), file=sys.stderr)
            elif is_new:  # `fit` raised before training began
                out.rmdir()
        raise
    watched = trainer.config.env is not None
    print("\n".join([*_how_it_ended(fitted, experiment.stop), *_where_things_are(out, to_open, watched=watched)]))
    return fitted


def make_trainer(experiment: Experiment, resume: Path | None, trust_code: bool) -> Trainer:
    """Returns the trainer of an experiment, new or restored from a checkpoint."""
    config, run = dict(experiment.config), experiment.run
    if experiment.env is not None:
        config["env"] = experiment.env
    if experiment.preset is not None and (resume is not None or experiment.given is not None):
        raise ConfigError.no_effect(
            "preset", "the config has all keys already", "--preset, or preset in the file", experiment.preset
        ).fix("leave it out, or begin a new run with it")
    if resume is not None:
        path = newest_checkpoint(resume)
        config = _within_stored_sections(config, path, trust_code)
        trainer = open_trainer(path, run=run, trust_code=trust_code, **config)
        if run is not None and ":" not in run and run.casefold() != trainer.name.casefold():
            raise ConfigError("The checkpoint belongs to a different algorithm.", "--run", run).expected(
                trainer.name, "leave --run out: the checkpoint names the algorithm"
            )
        return trainer
    if run is None:
        raise ConfigError.missing("algorithm", "--run", "an algorithm that `rollax list` shows, or module:Class").fix(
            "as in --run=PPO"
        )
    trainer_class = trainer_class_named(run)
    if experiment.preset is not None:
        config = merged(preset(experiment.preset, trainer_class.name), config)
    if config.get("env") is None and config.get("input") is None:
        raise ConfigError.missing("environment", "--env", "a Gymnasium id, a registered name, or module:Class").fix(
            "as in --env=CartPole-v1; with recorded data (--input) it may be left out"
        )
    if experiment.given is not None:
        return trainer_class(config=config_of_values(trainer_class.config_class, config, experiment.given))
    return trainer_class(config=config)


def _within_stored_sections(config: dict[str, Any], checkpoint: Path, trust_code: bool) -> dict[str, Any]:
    """Returns the settings of a resumed run; a section such as `model` also gets the other keys that the run has."""
    sections = [key for key, value in config.items() if isinstance(value, Mapping)]
    if not sections:
        return config
    from rollax.algorithms.checkpoint import read

    stored = decode_config(
        {key: part for key, part in read(checkpoint)["config"].items() if key in sections},
        trust="everything" if trust_code else "nothing",
    )
    return {**config, **{key: merged(part, config[key]) for key, part in stored.items() if isinstance(part, Mapping)}}


def new_folder(name: str) -> Path:
    """Creates and returns the next free folder `runs/<name>-<date>-<n>`."""
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    today = datetime.now().astimezone().date().isoformat()
    number = 1
    while True:
        path = Path("runs") / f"{name}-{today}-{number}"
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
        except OSError as error:
            fix = "choose a folder that you may write to, with --out"
            raise ConfigError("The run folder cannot be created.", where=str(path), got=str(error), fix=fix) from error


def _given_once(key: str, value: Any, settings: dict[str, Any]) -> Any:
    """Returns the value of an option, or else pops it from `settings`; ConfigError if it is in both."""
    if value is None:
        return settings.pop(key, None)
    if key in settings:
        raise ConfigError.twice(
            key, f"--{key.replace('_', '-')}, and --set or --config", f"{value}, {settings[key]}"
        ).fix(f"leave one of them out; --{key.replace('_', '-')} alone is enough")
    return value


def _how_it_ended(fitted: FitResult, stop: Mapping[str, float]) -> list[str]:
    shown = cells(fitted.last, None, thousands=",")
    reason = "interrupted"
    if fitted.reached == DONE:
        reason = "a callback ended the run"
    elif fitted.reached:
        value = number_in(fitted.last, *WHERE_IN_RESULT[fitted.reached])
        reason = f"{fitted.reached} {value:.10g} reached {stop[fitted.reached]:.10g}"
    lines = [f"Ended:            {reason} ({shown['steps']} steps, {shown['elapsed']})"]
    if fitted.reached and fitted.missed_goal:
        lines.append("                  the reward goal was not reached")
    if fitted.reached and fitted.signal is not None:
        lines.append("Greedy episodes:  none, the final evaluation was interrupted")
    elif fitted.last["evaluation"] is not None:
        lines.append(f"Greedy episodes:  {evaluation_line(fitted.last['evaluation'])}")
        lines += [f"Estimate:         {line}" for line in estimate_lines(fitted.last["evaluation"])]
    return lines


def _where_things_are(run: Path, to_open: Sequence[str], *, watched: bool = True) -> list[str]:
    """Returns the lines about the files of a run folder.

    `to_open` are the options that its checkpoints require. `watched`: whether there is an environment for videos.
    """
    logs = shlex.quote(shown_path(run))
    lines = []
    if any(run.glob(EVENTS)):
        first = "" if shutil.which("tensorboard") else "; first: pip install tensorboard"
        lines.append(f"TensorBoard log:  {logs}  (tensorboard --logdir {logs}{first})")
    if (run / CURVE).exists():
        lines.append(f"Learning curve:   {shown_path(run / CURVE)}")
    lines.append(f"Results:          {shown_path(run / RESULTS_NAME)}")
    last, best = (newest(run / folder, PREFIX) for folder in (CHECKPOINTS, BEST))
    if best is not None:
        lines.append(f"Best model:       {shown_path(best)}")
    if last is None:
        return [*lines, "Checkpoint:       none was saved"]
    checkpoint = shown_path(last)
    watch = f"{command_name()} evaluate {shlex.quote(checkpoint)} --episodes 5 --video videos/"
    watch = " ".join([watch, *map(shlex.quote, to_open)])
    if find_spec("imageio_ffmpeg") is None:
        watch += "  (first: pip install 'rollax[video]')"
    return [*lines, f"Checkpoint:       {checkpoint}", *([f"Watch the policy: {watch}"] if watched else [])]
