"""`rollax compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.completion import complete_run
from rollax.cli.console import TracebackOption, readable_errors
from rollax.errors import RollaxError
from rollax.runs.display import shown_path


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of several seeds.", autocompletion=complete_run)
    ],
    out: Annotated[Path, typer.Option(help="The picture to write, in the format of its suffix.")] = Path("compare.png"),
    traceback: TracebackOption = False,
) -> None:
    """Compare groups of runs that differ in their seeds: a table and a picture of interquartile means."""
    from rollax.runs.comparison import compared_by, draw, groups_of, table

    with readable_errors(traceback):
        groups = groups_of(runs)
        quantity = compared_by(groups)
        print(table(groups, quantity))
        print(f"\nScores are the last {quantity} of each run.")
        try:
            draw(groups, quantity, out)
        except OSError as error:
            fix = "pass --out in a folder that you may write to"
            raise RollaxError("The picture was not written.", where=str(out), got=str(error), fix=fix) from error
        print(shown_path(out))
