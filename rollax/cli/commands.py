"""The commands evaluate, list and plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rollax.cli.checkpoints import newest_checkpoint, open_trainer
from rollax.cli.console import ImportOption, TracebackOption, TrustOption, import_first, readable_errors
from rollax.cli.ending import evaluation_line
from rollax.errors import RollaxError
from rollax.runs.display import shown_path, title_of


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run folder for its newest one.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes to run.")] = 10,
    video: Annotated[Path | None, typer.Option(metavar="DIR", help="Record the episodes as videos there.")] = None,
    env: Annotated[str | None, typer.Option(help="Another environment with the same spaces.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the environments.")] = None,
    run: Annotated[str | None, typer.Option(help="module:Class of the trainer, if it is one of your own.")] = None,
    trust_code: TrustOption = False,
    imports: ImportOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the last line.")] = False,
    traceback: TracebackOption = False,
) -> None:
    """Run a trained policy greedily and report its rewards."""
    with readable_errors(traceback):
        import_first(imports)
        changes = {key: value for key, value in (("env", env), ("seed", seed)) if value is not None}
        trainer = open_trainer(newest_checkpoint(checkpoint), run=run, trust_code=trust_code, **changes)
        try:
            results = trainer.evaluate(episodes, record_dir=None if video is None else str(video))
            if not quiet:
                print(title_of(trainer.name, trainer.config.env))
                for number, reward in enumerate(results["episode_rewards"], start=1):
                    print(f"episode {number}  reward {reward:.2f}")
            print(evaluation_line(results))
            if not quiet:
                print(*(f"video {shown_path(Path(path))}\n" for path in results.get("videos", ())), sep="", end="")
        finally:
            trainer.stop()


def list_known(
    envs: Annotated[
        str | None, typer.Option("--envs", metavar="TEXT", help="All environment ids that contain TEXT ('' for all).")
    ] = None,
    imports: ImportOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Show the algorithms and the registered environments."""
    from rollax.cli.listing import algorithm_lines, count_lines, env_ids, matching

    with readable_errors(traceback):
        import_first(imports)
        families = env_ids()
        if envs is not None:
            found = matching(families, envs)
            if not found:
                print(
                    f"No environment id contains {envs!r}. --import=MODULE registers those of a package.",
                    file=sys.stderr,
                )
            print(*(f"{name}\n" for name in found), sep="", end="")
            return
        total = sum(map(len, families.values()))
        print("Algorithms (--run), or module:Class", *(f"  {line}" for line in algorithm_lines()), sep="\n")
        print(f"\nEnvironments (--env): {total} registered, or module:Class", sep="\n")
        print(*(f"  {line}" for line in count_lines(families)), sep="\n")


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or result.jsonl files.")],
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("curves.png"),
    traceback: TracebackOption = False,
) -> None:
    """Plot the reward of one or more runs over environment steps."""
    from rollax.runs.results import draw_curves, labelled

    with readable_errors(traceback):
        results = labelled(runs)
        for label, (_, unread) in results.items():
            if unread:
                print(f"{label}: {unread} lines could not be read and were left out", file=sys.stderr)
        try:
            draw_curves({label: lines for label, (lines, _) in results.items()}, out)
        except OSError as error:
            raise RollaxError("The picture was not written.", where=str(out), got=str(error)) from error
        print(shown_path(out))
