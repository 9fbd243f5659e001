"""`rollax compare`."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.completion import complete_run
from rollax.cli.console import PictureOption, TracebackOption, readable_errors
from rollax.core.atomic_files import named_write_errors
from rollax.errors import ConfigError


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, or folders of several seeds.", autocompletion=complete_run),
    ],
    out: PictureOption = Path("compare.png"),
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENV=LOW:HIGH",
            help="Rescale the scores of ENV so that LOW is 0 and HIGH is 1, before environments are averaged; by "
            "default LOW and HIGH are the lowest and highest score of the runs. Repeatable.",
        ),
    ] = None,
    traceback: TracebackOption = False,
) -> None:
    """Compare groups of runs that differ in their seeds: a table and a picture of interquartile means."""
    from rollax.runs.comparison import aggregate, compared_by, draw, drawn_by, groups_of, table
    from rollax.runs.display import shown_path

    with readable_errors(traceback):
        references = dict(map(_reference, reference or ()))
        groups = groups_of(runs)
        quantity = compared_by(groups)
        print(table(groups, quantity))
        print(f"\nScores are the last {quantity} of each run.")
        if over_all := aggregate(groups, quantity, references):
            print(f"\n{over_all}\n")
        with named_write_errors("The picture", out):
            draw(groups, drawn_by(groups), out)
        print(shown_path(out))


def _reference(text: str) -> tuple[str, tuple[float, float]]:
    env, _, scores = text.rpartition("=")
    low, _, high = scores.partition(":")
    with suppress(ValueError):
        if env and math.isfinite(float(low)) and math.isfinite(float(high)) and float(low) != float(high):
            return env, (float(low), float(high))
    raise ConfigError("A reference is not two scores of an environment.", "--reference", text).expected(
        "ENV=LOW:HIGH, with two different numbers", "write for example --reference=Hopper-v5=20:3300"
    )
