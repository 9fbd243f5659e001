"""The command `rollax record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.checkpoints import newest_checkpoint, open_trainer
from rollax.cli.console import (
    ImportOption,
    RunOption,
    TracebackOption,
    TrustOption,
    evaluation_line,
    import_first,
    readable_errors,
)
from rollax.runs.display import shown_path


def record(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run folder for its newest one.")],
    out: Annotated[Path, typer.Option(help="The folder for the files.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 100,
    greedy: Annotated[bool, typer.Option("--greedy", help="Act greedily, instead of exploring.")] = False,
    infos: Annotated[bool, typer.Option("--infos", help="Write the info dicts too.")] = False,
    env: Annotated[str | None, typer.Option(help="Another environment with the same spaces.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the environments and actions.")] = None,
    run: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Play a trained policy and write its experience as a data set."""
    with readable_errors(traceback):
        import_first(imports)
        changes = {key: value for key, value in (("env", env), ("seed", seed)) if value is not None}
        path = newest_checkpoint(checkpoint)
        with open_trainer(path, run=run, trust_code=trust_code, learn=False, **changes) as trainer:
            results = trainer.record(episodes, out, explore=not greedy, infos=infos)
            print(evaluation_line(results))
            print(*(f"data {shown_path(Path(path))}\n" for path in results["files"]), sep="", end="")
