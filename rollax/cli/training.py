"""What `rollax train` does with its options: it makes the trainer, trains, and prints the outcome and the paths."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.algorithms.named_trainers import trainer_class_named
from rollax.cli.checkpoints import names_code, open_trainer
from rollax.cli.console import (
    MISSED_GOAL,
    SIGNALLED,
    command_name,
    estimate_lines,
    evaluation_line,
    new_folder,
)
from rollax.cli.many_runs import check_halving, check_sweep, refuse_many, seeds_from, train_many
from rollax.cli.parsing import parse_config, parse_loggers, parse_settings, parse_stop
from rollax.cli.planned_runs import PlannedRun
from rollax.config.json_form import decode_config
from rollax.config.presets import preset
from rollax.config.trainer import config_of_values
from rollax.core.atomic_files import absolute
from rollax.core.importing import JAX_ENV
from rollax.core.storage import newest
from rollax.errors import ConfigError
from rollax.many.sweep import parse_sweep
from rollax.runs.comparison import experiment_of
from rollax.runs.display import cells, shown_path
from rollax.runs.experiment import Experiment, merged, override, read_experiment
from rollax.runs.loggers.table import make_loggers
from rollax.runs.loggers.tensorboard import EVENTS
from rollax.runs.results import RESULTS_NAME, WHERE_IN_RESULT, number_in
from rollax.runs.run_folder import BEST, CHECKPOINTS, CONFIG, CURVE, PREFIX, check_empty, newest_checkpoint
from rollax.runs.run_lock import refuse_used
from rollax.runs.stopping import DONE, checked_stop, ended_by

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.runs.fit import FitResult

_FIT_OPTIONS = ("checkpoint_frequency", "keep_checkpoints", "keep_best", "evaluate", "diagnose")


def train_by(train: Callable[..., None], options: Mapping[str, Any]) -> int:
    """Trains one run, or the runs of seeds and sweeps, and returns the exit code.

    Args:
        train: the command, which processes of several runs call with their own options.
        options: the arguments of the command by name, unchanged.
    Raises:
        RollaxError: an option is wrong, or training failed.
    """
    resume, out = options["resume"], options["out"]
    experiment, given = _experiment_of(options)
    named, trusted = experiment.loggers, options["trust_code"]
    where = f"{options['file']}: loggers"
    if options["logger"]:
        named, trusted, where = parse_loggers(options["logger"]), True, "--logger"

    def fit_options(progress: str) -> dict[str, Any]:
        loggers = None if named is None else make_loggers(named, where, trusted=trusted)
        return {"loggers": loggers, "progress": progress, **{name: options[name] for name in _FIT_OPTIONS}}

    fit = fit_options("none" if options["quiet"] else "auto")
    refuse_many(options)
    if options["seeds"] is not None or options["sweep"]:
        grid = parse_sweep(options["sweep"] or ())
        check_sweep(grid, experiment, given)
        check_halving(options["halving"], grid, experiment.stop)
        seeds = seeds_from(experiment.config.get("seed"), options["seeds"] or 1)
        kind = "sweep" if options["sweep"] else "seeds"
        folder = new_folder(f"{experiment.run}-{experiment.env or 'data'}-{kind}") if out is None else out
        here = Training(experiment, options["trust_code"], lambda: fit_options("none"))
        return train_many(train, options, experiment, folder, grid, seeds, here)
    _refuse_continue_for(options["continue_for"], experiment.stop, resumed=resume is not None)
    earlier = None if resume is None else newest_checkpoint(resume).resolve().parent.parent
    if out is not None and (earlier is None or out.resolve() != earlier):
        check_empty(out, "--out", f"rollax resume {shlex.quote(str(out))}")
    with make_trainer(experiment, resume, options["trust_code"]) as trainer:
        if earlier is not None:
            stop = stop_of_resumed(trainer, earlier, experiment.stop, options["continue_for"])
            experiment = dataclasses.replace(experiment, stop=stop)
        fitted = run_experiment(trainer, experiment, out, options["imports"] or (), fit)
    if fitted.signal is not None:
        return SIGNALLED + fitted.signal
    return MISSED_GOAL if options["must_reach"] and fitted.missed_goal else 0


def _experiment_of(options: Mapping[str, Any]) -> tuple[Experiment, dict[str, Any]]:
    """Returns the experiment of the file, overridden by the options; and the config of the options."""
    config, settings, data = options["config"], options["settings"] or (), options["input_"]
    given = merged({} if config is None else parse_config(config), parse_settings(settings))
    data = _given_once("input", data[0] if data and len(data) == 1 else data, given)
    online = _given_once("then_online", True if options["then_online"] else None, given)
    given |= {key: value for key, value in (("input", data), ("then_online", online)) if value is not None}
    file, trust_code = options["file"], options["trust_code"]
    experiment = override(
        Experiment() if file is None else read_experiment(file, trust_code=trust_code),
        run=options["run"],
        env=_given_once("env", options["env"], given),
        config=given if (seed := _given_once("seed", options["seed"], given)) is None else {**given, "seed": seed},
        stop=parse_stop(options),
        preset=options["preset"],
    )
    if options["resume"] is not None and options["preset"] is None:
        experiment = dataclasses.replace(experiment, preset=None)  # the checkpoint has the keys of a file's preset
    return experiment, given


@dataclasses.dataclass(frozen=True)
class Training:
    """How a planned run trains in this process, with the options of `rollax train`.

    Args:
        fit_options: returns keyword arguments of `Trainer.fit`, with new loggers for each run.
    """

    experiment: Experiment
    trust_code: bool
    fit_options: Callable[[], dict[str, Any]]

    def make(self, run: PlannedRun, resume: Path | None) -> Trainer:
        """Returns the trainer of a run, new or restored."""
        config = {**parse_settings(run.setting.texts), "seed": run.seed}
        experiment = override(self.experiment, run=None, env=None, config=config, stop={})
        if resume is not None:  # the checkpoint has the keys of the preset
            experiment = dataclasses.replace(experiment, preset=None)
        return make_trainer(experiment, resume, self.trust_code)

    def fit(self, trainer: Trainer, run: PlannedRun, resume: Path | None, stop: Mapping[str, float]) -> FitResult:
        """Trains into the run folder."""
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
    env = trainer.config.env
    watched = env is not None and not str(env).startswith(JAX_ENV)  # environments in JAX draw no pictures
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


def _refuse_continue_for(continue_for: int | None, stop: Mapping[str, float], *, resumed: bool) -> None:
    """Raises ConfigError for a `--continue-for` that is not positive, or has no effect."""
    if continue_for is None:
        return
    if not resumed:
        raise ConfigError.no_effect(
            "--continue-for", "there is no earlier run", "rollax train --continue-for", continue_for
        ).fix("write --stop-timesteps, or --resume=RUN")
    if continue_for <= 0:
        raise ConfigError.out_of_range("The number of further steps", "--continue-for", continue_for, "more than 0")
    if "timesteps_total" in stop:
        raise ConfigError.twice(
            "The limit of steps", "--continue-for and --stop-timesteps", f"{continue_for}, {stop['timesteps_total']}"
        ).fix("leave one of them out")


def stop_of_resumed(
    trainer: Trainer, run: Path, given: Mapping[str, float], continue_for: int | None
) -> Mapping[str, float]:
    """Returns the stop conditions of a trainer that continues the run in the folder `run`.

    The result has the conditions `given`, and `continue_for` more steps, in the unit of `count_steps_by`. Without
    either argument, the result is the stop conditions of the run.

    Raises:
        ConfigError: the run has ended by its own stop conditions, and no others are passed.
    """
    if continue_for is not None:
        return {**given, "timesteps_total": trainer.optimizer.steps + continue_for}
    if given or not (run / RESULTS_NAME).exists():  # without results, the checkpoint is not of a run folder
        return given
    stop = checked_stop(experiment_of(run).get("stop") or {}, f"{run / CONFIG}: stop")
    if by := ended_by(run, trainer.iteration, stop):
        raise ConfigError("The run has ended.", str(run), f"{by}, at {trainer.optimizer.steps:,} steps").expected(
            "a run that was interrupted, or other stop conditions",
            "pass --continue-for=N for N more steps, or stop conditions such as --stop-timesteps",
        )
    return stop


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

    `to_open`: the command-line options that the checkpoints require. `watched`: whether there is an environment for
    videos.
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
