"""The commands `rollax zoo list`, `show`, `train`, `play`, `verify` and `measure`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollax.cli import commands
from rollax.cli.console import (
    EachOptionOnce,
    EnvSeedOption,
    EpisodesOption,
    TracebackOption,
    TrustOption,
    VideoOption,
    command_name,
    folders_of,
    new_folder,
    passed,
    readable_errors,
)
from rollax.cli.train import train
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.zoo import Entry

OUTSIDE = 1
RUNS = "runs"

app = typer.Typer(no_args_is_help=True, help="Settings that were measured, for many tasks.", rich_markup_mode=None)

EnvArgument = Annotated[
    str, typer.Argument(metavar="ENV", help="The environment, as `rollax zoo list` shows it, or the file of an entry.")
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algo", metavar="ALGORITHM", help="The algorithm; may be left out if the environment has one entry."
    ),
]


@app.command("list", cls=EachOptionOnce)
def list_entries(
    env: Annotated[str | None, typer.Option(metavar="ENV", help="Only environments whose id contains this.")] = None,
    algo: Annotated[str | None, typer.Option(metavar="ALGORITHM", help="Only this algorithm.")] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only entries with this tag, such as classic or box2d.")
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Show the entries with their scores."""
    from rollax.zoo import entries
    from rollax.zoo.tables import COLUMNS, row

    with readable_errors(traceback):
        found = [
            entry
            for entry in entries()
            if (env is None or env.casefold() in entry.env.casefold())
            and (algo is None or algo.casefold() == entry.algorithm.casefold())
            and (tag is None or tag in entry.about.tags)
        ]
        if not found:
            tags = sorted({tag for entry in entries() for tag in entry.about.tags})
            raise ConfigError("No entry fits.", "rollax zoo list", f"env={env}, algo={algo}, tag={tag}").expected(
                f"a tag of {', '.join(tags)}; environments and algorithms as `rollax zoo list` shows them",
                "leave an option out",
            )
        rows = [COLUMNS, *map(row, found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for cells in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


@app.command("show", cls=EachOptionOnce)
def show(env: EnvArgument, algo: AlgorithmOption = None, traceback: TracebackOption = False) -> None:
    """Show the settings of an entry, its figures and its commands."""
    from rollax.zoo import load
    from rollax.zoo.tables import description

    with readable_errors(traceback):
        entry = load(env, algo)
        print(description(entry, f"{command_name()} zoo"))


@app.command("train", cls=EachOptionOnce, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train_entry(
    context: typer.Context, env: EnvArgument, algo: AlgorithmOption = None, traceback: TracebackOption = False
) -> None:
    """Train with the settings of an entry. Options of `rollax train`, such as --seed and --out, are passed on."""
    from rollax.zoo import load
    from rollax.zoo.entry import is_installed

    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(cls=EachOptionOnce)(train)
    command = typer.main.get_command(alone)
    with readable_errors(traceback):
        entry = load(env, algo)
    inner = command.make_context("rollax zoo train", list(context.args))
    with readable_errors(traceback):
        for name in ("file", "run", "env", "preset", "resume"):
            if inner.params[name] is not None:
                raise ConfigError(
                    "The entry has this setting.", f"rollax zoo train --{name}", inner.params[name]
                ).expected(
                    "options that change the run, such as --seed, --out, --set",
                    f"leave it out, or use `rollax train -f {entry.path}`",
                )
        inner.params |= {"file": entry.path, "traceback": traceback}
        inner.params["trust_code"] |= is_installed(entry.path)
        folder = None
        if inner.params["out"] is None:
            folder = inner.params["out"] = new_folder(_run_name(entry))
    try:
        command.invoke(inner)
    finally:
        if folder is not None:
            with suppress(OSError):  # the folder is not empty, unless an error came before training began
                folder.rmdir()


@app.command("play", cls=EachOptionOnce)
def play(
    env: EnvArgument,
    algo: AlgorithmOption = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A run folder or checkpoint; by default the newest run of `rollax zoo train` for the entry.",
        ),
    ] = None,
    episodes: EpisodesOption = 10,
    video: VideoOption = None,
    seed: EnvSeedOption = None,
    trust_code: TrustOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Play a trained policy of an entry greedily."""
    from rollax.runs.display import shown_path
    from rollax.zoo import load
    from rollax.zoo.entry import is_installed

    with readable_errors(traceback):
        entry = load(env, algo)
        if run is None:
            run = _newest_run(entry)
            print(f"run {shown_path(run)}")
        # Code that a run names is not trusted; code that an entry of rollax itself names is.
        changes = passed(seed=seed)
        if is_installed(entry.path):
            changes |= {"env": entry.experiment.env, "env_wrappers": entry.config.get("env_wrappers", ())}
        commands.play_greedily(run, episodes, video, run=None, trust_code=trust_code, **changes)


@app.command("verify", cls=EachOptionOnce)
def verify(
    env: EnvArgument,
    algo: AlgorithmOption = None,
    first: Annotated[
        bool,
        typer.Option(
            "--first/--whole", help="Compare the first iterations bit for bit, or the score of whole training."
        ),
    ] = True,
    seeds: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of seeds; by default all of the entry.")
    ] = None,
    trust_code: TrustOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Train with an entry again and compare with its measured results; the exit code is 1 if they differ."""
    from rollax.zoo import load
    from rollax.zoo import verify as verify_whole
    from rollax.zoo.tables import verdict
    from rollax.zoo.verifying import verify_first

    with readable_errors(traceback):
        entry = load(env, algo, trust_code=trust_code)
        run_again = verify_first if first else verify_whole
        print(f"{entry.algorithm} on {entry.env}, {'first part' if first else 'whole training'}")
        verified = run_again(entry, seeds, show=_show)
        print(verdict(verified))
        if not verified.passed:
            raise typer.Exit(OUTSIDE)


@app.command("measure", cls=EachOptionOnce)
def measure(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The entry, a YAML file; its section `measured` is written.")
    ],
    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="Number of seeds, from 0 on.")] = 3,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A folder for the run folders; by default below runs.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Drop the results that the file has.")] = False,
    trust_code: TrustOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Train with the seeds of an entry and write the results into its file; seeds with results are skipped."""
    from rollax.zoo import read_entry
    from rollax.zoo.measuring import measure as measure_entry

    with readable_errors(traceback):
        entry = read_entry(file, trust_code=trust_code)
        folder = new_folder(f"measure-{entry.name}") if out is None else out
        measure_entry(entry, seeds, folder, again=again, show=_show)


def _show(line: str) -> None:
    print(line, flush=True)


def _run_name(entry: Entry) -> str:
    return f"zoo-{entry.name}"


def _newest_run(entry: Entry) -> Path:
    """Returns the newest run folder with a checkpoint that `rollax zoo train` has made for an entry."""
    from rollax.runs.comparison import runs_in
    from rollax.runs.run_folder import newest_saved

    found: list[tuple[float, Path]] = []
    for folder in folders_of(_run_name(entry)):
        for run in runs_in(folder):
            checkpoint = newest_saved(run)
            if checkpoint is not None:
                found.append((checkpoint.stat().st_mtime, run))
    if not found:
        train_it = f"rollax zoo train {entry.in_commands}"
        raise ConfigError("There is no trained run of the entry.", f"{RUNS}/{_run_name(entry)}-*", None).expected(
            "a run folder with a checkpoint", f"train it: {train_it}; or pass --run=FOLDER"
        )
    return max(found)[1]
