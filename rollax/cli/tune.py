"""`rollax tune`."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rollax.cli.completion import complete_algorithm, complete_env, complete_run
from rollax.cli.console import (
    SIGNALLED,
    ImportOption,
    TracebackOption,
    TrustOption,
    command_name,
    new_folder,
    readable_errors,
)
from rollax.cli.parsing import parse_pairs, parse_settings, parse_stop
from rollax.cli.train import QuietOption, SettingsOption, StopIterations, StopTime, StopTimesteps
from rollax.core.importing import named_by_caller
from rollax.errors import ConfigError


def tune(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|ALGORITHM",
            help="A YAML file as `rollax train -f` reads it, with a section `search`; or an algorithm.",
            autocompletion=complete_algorithm,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV",
            help="A Gymnasium id, a registered name, or module:Class; may be left out if the file has one.",
            autocompletion=complete_env,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of trials, earlier ones included; by default 20, or no limit with --time."
        ),
    ] = None,
    time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds after which no further trial begins.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=DISTRIBUTION",
            help="What is searched, as in 'lr={log: [1e-5, 1e-2]}' or 'gamma={choice: [0.9, 0.99]}'; may be repeated.",
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How values are chosen: tpe (the default), random, cmaes or grid."),
    ] = None,
    pruner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which trials end early: median (the default), halving or none.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of seeds of a trial, whose scores are averaged; by default 1."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="The seed of the sampler, and first seed of a trial; by default 1000."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of evaluations of a trial, after each of which it may be pruned."
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="evaluation (the default): greedy episodes; training: the training episodes."
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A new folder, or the folder of a study to continue; by default one below runs."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Go on with the study in this folder, with its settings.", autocompletion=complete_run
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of trials at the same time, each in a process.")
    ] = 1,
    settings: SettingsOption = None,
    stop_timesteps: StopTimesteps = None,
    stop_iterations: StopIterations = None,
    stop_time: StopTime = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Search for good settings of an algorithm, and write the best ones as an experiment file."""
    stop = {"stop_timesteps": stop_timesteps, "stop_iterations": stop_iterations, "stop_time": stop_time}
    with readable_errors(traceback, imports):
        if (run is None) == (resume is None):
            got = f"{run}, --resume={resume}"
            raise ConfigError("Either settings or a study is needed.", "rollax tune", got).expected(
                "a YAML file, an algorithm with an environment, or --resume", "as in rollax tune PPO CartPole-v1"
            )
        from rollax.runs.display import shown_path
        from rollax.tune.report import summary
        from rollax.tune.settings import is_study, requires_trust
        from rollax.tune.study import run_study

        if resume is not None and not is_study(resume):
            raise ConfigError("The folder has no study.", "--resume", str(resume)).expected(
                "a folder that `rollax tune` has written", "check the path"
            )
        made = None
        if resume is None and study is None:
            made = study = new_folder(f"tune-{Path(run or '').stem}-{env or ''}")
        options: dict[str, Any] = {"sampler": sampler, "pruner": pruner, "seeds": seeds, "seed": seed}
        try:
            found = run_study(
                resume if resume is not None else named_by_caller(run),
                None if env is None else named_by_caller(env),
                parse_settings(settings or ()),
                stop=parse_stop(stop),
                search=parse_pairs(search, "--search") if search else None,
                trials=trials,
                time_s=time,
                **options,
                evaluations=evaluations,
                score=score,  # type: ignore[arg-type]  checked there
                study=study,
                jobs=jobs,
                trust_code=trust_code,
                show=_silent if quiet else _show,
            )
        finally:
            if made is not None:
                with suppress(OSError):  # the folder has files, unless the study was refused before it began
                    made.rmdir()
        print(f"\n{summary(found.ranked, found.importances)}\n")
        assert found.folder is not None
        where, trust = shlex.quote(shown_path(found.folder)), " --trust-code"
        named = trust_code or requires_trust(found.settings.experiment(found.settings.config))
        print(f"Study:  {where}  (go on: {command_name()} tune --resume {where}{trust * named} --trials N)")
        if found.best_file is not None:
            trusted = requires_trust(found.settings.experiment(found.best_config))
            best = shlex.quote(shown_path(found.best_file)) + trust * trusted
            print(f"Best:   {best}  (train: {command_name()} train -f {best})")
            print(
                f"        The best of many trials is optimistic: {command_name()} zoo measure {best} uses other seeds."
            )
    if found.signal is not None:
        raise typer.Exit(SIGNALLED + found.signal)


def _show(line: str) -> None:
    print(line, flush=True)


def _silent(line: str) -> None:
    pass
