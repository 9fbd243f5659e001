"""The `rollax` command.

Exit codes: 0 success; 1 an unexpected error, with its traceback, or a negative result of `check`, `data check`,
`zoo verify`, `play --verify` or `doctor`; 2 a user error, with a message that contains the fix; 3 a reward goal not
reached (`--must-reach` of `train` and `resume`); 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

import rollax
from rollax.cli import (
    commands,
    compare,
    completion,
    data,
    docs,
    doctor,
    estimate,
    explain,
    serve,
    share,
    train,
    tune,
    zoo,
)
from rollax.cli.console import EachOptionOnce, readable_errors, search_current_folder
from rollax.core.atomic_files import absolute
from rollax.errors import ConfigError
from rollax.runs.interrupts import no_lost_interrupts

# Python's own tracebacks, which debuggers and editors can parse.
app = typer.Typer(name="rollax", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("train", cls=EachOptionOnce)(train.train)
app.command("tune", cls=EachOptionOnce)(tune.tune)
app.command("resume", cls=EachOptionOnce)(train.resume)
app.command("check", cls=EachOptionOnce)(commands.check)
app.command("evaluate", cls=EachOptionOnce)(commands.evaluate)
app.command("estimate", cls=EachOptionOnce)(estimate.estimate)
app.command("serve", cls=EachOptionOnce)(serve.serve)
app.command("export", cls=EachOptionOnce)(commands.export)
app.command("list", cls=EachOptionOnce)(commands.list_known)
app.command("explain", cls=EachOptionOnce)(explain.explain)
app.command("record", cls=EachOptionOnce)(commands.record)
app.add_typer(data.app, name="data")
app.add_typer(zoo.app, name="zoo")
app.command("share", cls=EachOptionOnce)(share.share)
app.command("fetch", cls=EachOptionOnce)(share.fetch)
app.command("play", cls=EachOptionOnce)(share.play)
app.command("docs", cls=EachOptionOnce)(docs.docs)
app.command("plot", cls=EachOptionOnce)(commands.plot)
app.command("compare", cls=EachOptionOnce)(compare.compare)
app.command("doctor", cls=EachOptionOnce)(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rollax {rollax.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train, evaluate, serve and export reinforcement-learning policies."""
    with readable_errors(show_traceback=False):
        absolute(".", ConfigError)  # some packages, such as PettingZoo, cannot be imported in a removed folder


def main() -> None:
    search_current_folder()
    completion.prepare(os.environ)
    with no_lost_interrupts():
        app()
