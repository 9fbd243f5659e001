"""`rollax train --seeds N --sweep KEY=VALUES`: runs that differ in seeds and numbers, each in a run folder of its own.

Without `--parallel`, runs of an environment in JAX train together in this process; other runs have their own processes.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rollax.algorithms.named_trainers import trainer_class_named
from rollax.cli.console import MISSED_GOAL, SIGNALLED, USER_ERROR
from rollax.cli.parsing import parse_config, parse_settings
from rollax.cli.planned_runs import Outcome, PlannedRun
from rollax.cli.runs_in_processes import train_in_processes
from rollax.cli.runs_together import train_here
from rollax.cli.sweep_report import STOPPED_NAME, Standing, report, write_stopped, write_text
from rollax.config.presets import preset
from rollax.config.trainer import resolve_config
from rollax.core.atomic_files import read_regular
from rollax.core.importing import JAX_ENV
from rollax.core.numbers import is_whole
from rollax.errors import ConfigError
from rollax.many.halving import Halving
from rollax.many.sweep import Setting, Sweep
from rollax.runs.display import title_of
from rollax.runs.experiment import Experiment, merged
from rollax.runs.interrupts import StopRequest
from rollax.runs.live_curves import LiveCurves
from rollax.runs.results import curve, number_in, read_results, to_json
from rollax.runs.run_folder import check_empty, iteration_of, newest_saved
from rollax.runs.run_lock import RunLock
from rollax.runs.stopping import missed_goal, reached, result_at

if TYPE_CHECKING:
    from rollax.cli.training import Training

SETTINGS_NAME = "seeds.json"
CURVES_NAME = "curves.png"
_MOST_BYTES = 1 << 24
_ABSENT: Any = object()


def train_many(
    train: Callable[..., None],
    options: Mapping[str, Any],
    experiment: Experiment,
    folder: Path,
    sweep: Sweep,
    seeds: Sequence[int],
    training: Training,
) -> int:
    """Trains each setting of a sweep with each seed in `folder`, and returns the exit code.

    Runs that have ended are left as they are, and interrupted runs continue from their newest checkpoints. After an
    error no further run begins. In a sweep, a run whose numbers become NaN or infinite ends only its own setting.

    Args:
        train: trains one run, as `rollax train` does, and raises `typer.Exit`.
        options: arguments of `train`; each process gets its own seed, setting and folder.
        experiment: algorithm, environment, config and stop conditions of all runs, without the sweep.
        folder: gets a folder for each setting, with a run folder for each seed.
        sweep: the settings; a sweep without keys has one setting.
        training: how a run trains in this process.
    Raises:
        ConfigError: the folder has other files or other settings, or another process writes into it.
    """
    with RunLock(folder, "--out") as lock, StopRequest() as request:
        halving = None if options["halving"] is None else Halving(options["halving"])
        if halving is not None:
            _warn_of_empty_buffers(experiment)
        _check_settings(lock.folder, experiment, sweep, halving)
        many = _ManyRuns(train, options, experiment, lock.folder, seeds, training, request)
        outcome = many.train(sweep.settings, halving)
        many.curves.finish()
        if request.signal is not None:
            return SIGNALLED + request.signal
        if outcome.goes_on:
            imports = options["imports"] or ()
            report(many.standings, experiment, lock.folder if sweep.axes else None, imports)
    if len(outcome.diverged) == len(sweep.settings):
        return USER_ERROR
    return max(outcome.codes - {MISSED_GOAL}) or max(outcome.codes)


class _ManyRuns:
    """The runs of `train_many`; see there for the arguments."""

    def __init__(
        self,
        train: Callable[..., None],
        options: Mapping[str, Any],
        experiment: Experiment,
        folder: Path,
        seeds: Sequence[int],
        training: Training,
        request: StopRequest,
    ) -> None:
        self._train, self._options, self._experiment, self._training = train, options, experiment, training
        self._folder, self._seeds, self._request = folder, seeds, request
        self.standings: list[Standing] = []
        """The result of each setting, the latest stopped first; complete after `train`."""
        title = title_of(str(experiment.run), _env_of(experiment))
        self.curves = LiveCurves(folder / CURVES_NAME, _quantity(experiment), title, quiet=options["quiet"])

    def train(self, settings: Sequence[Setting], halving: Halving | None) -> Outcome:
        """Trains the settings; at each rung some of them stop, as long as several are left."""
        going, outcome = list(settings), Outcome()
        limit = self._experiment.stop.get("timesteps_total", math.inf)
        self.curves.runs = {setting.name: [run.folder for run in self._runs(setting)] for setting in settings}
        for rung in () if halving is None else halving.rungs(limit):
            if len(going) < 2 or all(map(self._have_ended, going)):
                break
            found = self._trained(going, {**self._experiment.stop, "timesteps_total": rung})
            found.codes.discard(MISSED_GOAL)  # the goal may be reached after the rung
            outcome.add(found)
            if self._request.signal is not None or not outcome.goes_on:
                return outcome
            assert halving is not None
            going = self._decided(going, found.diverged, halving, rung)
        found = self._trained(going, self._experiment.stop)
        outcome.add(found)
        self._note(going, found.diverged, None)
        return outcome

    def _runs(self, setting: Setting) -> list[PlannedRun]:
        return [PlannedRun(setting, seed, self._folder) for seed in self._seeds]

    def _trained(self, settings: Sequence[Setting], stop: Mapping[str, float]) -> Outcome:
        runs = [run for setting in settings for run in self._runs(setting)]
        waiting = [run for run in runs if not _has_ended(run.folder, stop)]
        parallel, env, outcome = self._options["parallel"], _env_of(self._experiment), Outcome()
        ended = (_last_result(run.folder) for run in runs if run not in waiting)
        if self._options["must_reach"] and any(missed_goal(stop, last) for last in ended):
            outcome.codes.add(MISSED_GOAL)
        if parallel is None and isinstance(env, str) and env.startswith(JAX_ENV) and len(waiting) > 1:
            found, waiting = train_here(self._training, waiting, stop, self._request, self._options, self.curves.update)
            outcome.add(found)
        if waiting:
            several = parallel is not None and parallel > 1
            one = {**self._options, "seeds": None, "sweep": None, "halving": None, "parallel": None}
            one |= {"quiet": self._options["quiet"] or several, "stop_timesteps": _whole(stop.get("timesteps_total"))}
            watch = self.curves.update
            outcome.add(train_in_processes(self._train, one, waiting, parallel or 1, self._request, watch))
        return outcome

    def _decided(self, going: Sequence[Setting], diverged: set[Setting], halving: Halving, rung: int) -> list[Setting]:
        """Returns the settings that go on after a rung, and notes why the others stop."""
        finite = [setting for setting in going if setting not in diverged]
        ended = set(filter(self._have_ended, finite))
        if len(ended) == len(finite):  # all ended by stop conditions other than the limit of steps
            self._note([setting for setting in going if setting in diverged], diverged, None)
            return finite
        lines = {setting: [_until(run.folder, rung) for run in self._runs(setting)] for setting in finite}
        greedy = all(curve(run, "evaluation_reward_mean")[1] for runs in lines.values() for run in runs)
        quantity = "evaluation_reward_mean" if greedy else "episode_reward_mean"
        scores = {setting: _mean_of_last(lines.get(setting, ()), quantity) for setting in going}
        if all(score is None for score in scores.values()):
            what = f"no setting has a score of all its seeds yet; {len(finite)} of {len(going)} settings go on"
            print(f"\nSuccessive halving: after {rung:,} steps, {what}.", flush=True)
            self._note([setting for setting in going if setting in diverged], diverged, None)
            self._forget_stops(finite)
            return finite
        kept, stopped = halving.ranked(scores)
        goes_on = [setting for setting in kept if setting not in diverged]
        of_seeds = f"the mean over {len(self._seeds)} seeds of " if len(self._seeds) > 1 else ""
        print(
            f"\nSuccessive halving: after {rung:,} steps, {len(goes_on)} of {len(going)} settings go on, by {of_seeds}"
            f"the last {quantity}.",
            flush=True,
        )
        stops = [setting for setting in (*kept, *stopped) if setting not in goes_on and setting not in ended]
        self._forget_stops(goes_on)
        for place, setting in enumerate((*kept, *stopped), start=1):
            what = "stops" if setting in stops else "has ended" if setting in ended else "goes on"
            print(f"  {what:9}  {setting.name}: {_score_text(scores[setting])}", flush=True)
            if setting in stops and setting not in diverged:
                for run in self._runs(setting):
                    write_stopped(run.folder, rung, quantity, scores[setting], place, len(going), len(kept))
        self._note(stops, diverged, rung)
        self._note([setting for setting in stopped if setting in ended], diverged, None)
        return goes_on

    def _have_ended(self, setting: Setting) -> bool:
        return all(_has_ended(run.folder, self._experiment.stop) for run in self._runs(setting))

    def _forget_stops(self, settings: Sequence[Setting]) -> None:
        """Removes the notes of an earlier call, with fewer seeds, in which these settings stopped."""
        for run in (run for setting in settings for run in self._runs(setting)):
            (run.folder / STOPPED_NAME).unlink(missing_ok=True)

    def _note(self, settings: Sequence[Setting], diverged: set[Setting], rung: int | None) -> None:
        folders = {setting: tuple(run.folder for run in self._runs(setting)) for setting in settings}
        ended = [Standing(setting, runs, rung, setting in diverged) for setting, runs in folders.items()]
        self.standings = [*ended, *self.standings]


def refuse_many(options: Mapping[str, Any]) -> None:
    """Raises ConfigError for arguments of `train` that cannot be combined with many runs, or that require them."""
    seeds, sweep = options["seeds"], options["sweep"]
    if options["halving"] is not None:
        if not sweep:
            raise ConfigError.no_effect("--halving", "there is only one setting", "--halving", options["halving"]).fix(
                "pass --sweep KEY=VALUES too"
            )
        if options["halving"] <= 0:
            raise ConfigError.out_of_range("The first rung", "--halving", options["halving"], "more than 0 steps")
    if seeds is None and not sweep:
        if options["parallel"] is not None:
            why = "there is only one run"
            raise ConfigError.no_effect("--parallel", why, "--parallel", options["parallel"]).fix(
                "pass --seeds=N or --sweep KEY=VALUES too"
            )
        return
    if options["resume"] is not None or options["continue_for"] is not None:
        raise ConfigError("Many runs cannot continue one run.", "--seeds, --sweep, --resume", seeds or sweep).fix(
            "leave --resume and --continue-for out: the same command with the same --out continues interrupted runs"
        )
    given = {**parse_config(options["config"] or "{}"), **parse_settings(options["settings"] or ())}
    if "seed" in given:
        raise ConfigError.twice("The seed", "--seeds or --sweep, and --set or --config", given["seed"]).fix(
            "pass the first seed as --seed"
        )


def seeds_from(first: Any, number: int) -> range:
    """Returns `number` seeds that count up from `first`, where None is 0; ConfigError for a wrong first seed."""
    first = 0 if first is None else first
    if not (is_whole(first) and first >= 0):
        raise ConfigError.out_of_range("The first seed", "config key 'seed'", first, "a whole number of at least 0")
    return range(first, first + number)


def check_halving(first_rung: int | None, sweep: Sweep, stop: Mapping[str, float]) -> None:
    """Raises ConfigError if no setting can stop at the first rung: there is one setting, or the runs end before it."""
    limit = stop.get("timesteps_total", math.inf)
    if first_rung is None or (len(sweep.settings) > 1 and first_rung < limit):
        return
    why = "there is only one setting"
    if len(sweep.settings) > 1:
        why = f"the runs end after {limit:,.10g} steps"
    raise ConfigError.no_effect("--halving", why, "--halving", first_rung)


def check_sweep(sweep: Sweep, experiment: Experiment, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for keys that other options set too, keys that the algorithm lacks, and wrong settings.

    Without an algorithm, only keys that other options set too are checked; `train` then refuses the missing algorithm.

    Args:
        sweep: the settings.
        experiment: algorithm and config of all settings, without the sweep.
        given: the config of other options.
    """
    from rollax.tune.distributions import Choice  # loaded only where they are used
    from rollax.tune.space import check_space, with_values

    for key in sweep.axes:
        part: Any = given
        for name in key.split("."):
            part = part.get(name, _ABSENT) if isinstance(part, Mapping) else _ABSENT
        if part is not _ABSENT:
            raise ConfigError.twice(key, "--sweep, and --set or --config", key)
    if experiment.run is None or not sweep.axes:
        return
    trainer_class = trainer_class_named(experiment.run)
    choices = {key: Choice(values) for key, values in sweep.axes.items()}
    check_space(choices, trainer_class.config_class, "--sweep")
    config = dict(experiment.config)
    if experiment.preset is not None:
        config = merged(preset(experiment.preset, trainer_class.name), config)
    if experiment.env is not None:
        config["env"] = experiment.env
    for setting in sweep.settings:  # before any of them trains
        resolve_config(trainer_class.config_class, with_values(config, dict(setting.values)))


def _warn_of_empty_buffers(experiment: Experiment) -> None:
    """Says that runs which go on after a rung lose their replay buffers, unless checkpoints contain them."""
    key = "store_buffer_in_checkpoints"
    if experiment.run is None or experiment.config.get(key):
        return
    if key in trainer_class_named(experiment.run).config_class.model_fields:
        print(
            "Successive halving: settings that go on after a rung begin with an empty replay buffer; "
            f"--set {key}=true keeps it.",
            file=sys.stderr,
            flush=True,
        )


def _check_settings(folder: Path, experiment: Experiment, sweep: Sweep, halving: Halving | None) -> None:
    """Stores the settings in a new folder, or compares them with the stored ones.

    Stop conditions may differ, and a sweep without rungs may have more values: no run depends on another one.
    """
    config = {key: value for key, value in experiment.config.items() if key != "seed"}
    found: dict[str, Any] = {
        "run": experiment.run,
        "env": experiment.env,
        "preset": experiment.preset,
        "config": config,
    }
    if sweep.axes:
        found |= {"sweep": dict(sweep.axes), "halving": None if halving is None else halving.first}
    settings = to_json(found, indent=2) + "\n"
    path = folder / SETTINGS_NAME
    if not path.exists():
        check_empty(folder, "--out", f"rollax resume {shlex.quote(str(folder))}", held=True)
        write_text(path, settings)
        return
    stored = read_regular(path, _MOST_BYTES)
    if stored == settings.encode():
        return
    if halving is not None or not _has_more_values(sweep, json.loads(settings), stored):
        raise ConfigError("The folder has runs of other settings.", "--out", str(folder)).expected(
            f"the algorithm, environment, preset, config, sweep and first rung of {path}",
            "choose another folder; only values of a sweep without --halving can be added to a folder",
        )
    write_text(path, settings)


def _has_more_values(sweep: Sweep, settings: Mapping[str, Any], stored: bytes) -> bool:
    """Whether `settings` are the stored settings with more values in the sweep."""
    try:
        before = json.loads(stored)
        axes = dict(before["sweep"])
        kept = all(set(values) <= set(sweep.axes[key]) for key, values in axes.items())
    except (ValueError, TypeError, KeyError):  # a damaged file, no sweep, or other keys
        return False
    # The order of the keys is in the names of the run folders.
    return kept and list(axes) == list(sweep.axes) and {**before, "sweep": None} == {**settings, "sweep": None}


def _env_of(experiment: Experiment) -> Any:
    return experiment.config.get("env") if experiment.env is None else experiment.env


def _has_ended(run: Path, stop: Mapping[str, float]) -> bool:
    return reached(stop, _last_result(run)) is not None


def _last_result(run: Path) -> Mapping[str, Any]:
    """The result at the newest checkpoint of a run folder; {} if there is none."""
    newest = newest_saved(run)
    return {} if newest is None else result_at(run, iteration_of(newest))


def _quantity(experiment: Experiment) -> str:
    """Returns what the curves show: greedy evaluations if there are any before the end."""
    greedy = experiment.config.get("evaluation_interval") or "evaluation_reward_mean" in experiment.stop
    return "evaluation_reward_mean" if greedy else "episode_reward_mean"


def _until(run: Path, rung: int) -> list[dict[str, Any]]:
    """Returns the results of a run up to the first one that has reached a rung."""
    results, _ = read_results(run)
    reached = [(number_in(result, "timesteps_total") or 0) >= rung for result in results]
    return results[: reached.index(True) + 1] if True in reached else results


def _mean_of_last(runs: Sequence[Sequence[Mapping[str, Any]]], quantity: str) -> float | None:
    """Returns the mean over runs of their last values; None if a run has no value."""
    lasts = [curve(results, quantity)[1][-1:] for results in runs]
    return fmean(last[0] for last in lasts) if lasts and all(lasts) else None


def _score_text(score: float | None) -> str:
    return "no score" if score is None else f"{score:.6g}"


def _whole(number: float | None) -> int | None:
    return None if number is None else math.ceil(number)
