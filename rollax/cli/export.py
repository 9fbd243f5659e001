"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rollax.batch import DEFAULT_POLICY
from rollax.cli.checkpoints import newest_checkpoint, trainer_class_named
from rollax.cli.console import ImportOption, RunOption, TracebackOption, TrustOption, import_first, readable_errors
from rollax.runs.display import shown_path


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run folder for its newest one.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    to: Annotated[str, typer.Option(help="The format: onnx or stablehlo.")] = "onnx",
    policy_id: Annotated[str, typer.Option(help="The policy, in a run with several.")] = DEFAULT_POLICY,
    run: RunOption = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Write a trained policy to a file that other runtimes and languages run."""
    from rollax.serving.export.export_policy import export_policy

    with readable_errors(traceback):
        import_first(imports)
        options: dict[str, Any] = {"policy_id": policy_id, "trust_code": trust_code}
        if run is not None:
            options["trainer_class"] = trainer_class_named(run)
        print(shown_path(export_policy(newest_checkpoint(checkpoint), to, out=out, **options)))  # type: ignore[arg-type]  checked there
