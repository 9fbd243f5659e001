"""`rollax explain`: a config key, or the name of a setting in another library."""

from __future__ import annotations

from typing import Annotated

import typer

from rollax.cli.completion import complete_algorithm, complete_key
from rollax.cli.console import ImportOption, TracebackOption, readable_errors


def explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A config key, such as lr or model.fcnet_hiddens, or its name elsewhere.",
            autocompletion=complete_key,
        ),
    ],
    algo: Annotated[
        str | None,
        typer.Option(
            "--algo",
            "--run",
            metavar="ALGORITHM",
            help="Only this algorithm, as `rollax list` shows it.",
            autocompletion=complete_algorithm,
        ),
    ] = None,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show what a config key means: default, range, conditions, algorithms, and its names in other libraries."""
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.algorithms.registry import ALGORITHMS
    from rollax.cli.explanation import explanation

    with readable_errors(traceback, imports):
        names = list(ALGORITHMS) if algo is None else [algo]
        print("\n".join(explanation(key, {name: trainer_class_named(name, "--algo").config_class for name in names})))
