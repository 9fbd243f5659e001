"""`rollax doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.console import EnvOption, ImportOption, RunOption, TracebackOption, TrustOption, readable_errors


def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, which may still go on.")],
    play: Annotated[
        int, typer.Option(min=0, metavar="N", help="Least number of episodes to play with the newest checkpoint.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    env: EnvOption = None,
    trainer: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Say what is wrong in a run, by which numbers, and what to change. Exit code 1: problems or warnings."""
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.doctor.diagnose import diagnose

    with readable_errors(traceback, imports):
        own = None if trainer is None else trainer_class_named(trainer)
        diagnosis = diagnose(run, play=play, env=env, trainer_class=own, trust_code=trust_code)
        print(json.dumps(diagnosis.to_json(), indent=2) if as_json else diagnosis)
    if diagnosis.worst in ("problem", "warning"):
        raise typer.Exit(1)
