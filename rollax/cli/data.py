"""The commands `rollax data info`, `check`, `convert` and `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollax.cli.console import EachOptionOnce, PictureOption, TracebackOption, readable_errors
from rollax.cli.parsing import parse_config
from rollax.core.atomic_files import named_write_errors
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.offline.dataset import DatasetReader

BROKEN = 1

app = typer.Typer(no_args_is_help=True, help="Show, check, convert and plot data sets.", rich_markup_mode=None)

Sources = Annotated[list[str], typer.Argument(metavar="DATA", help="Files, folders, patterns, or minari:ID.")]
FormatOption = Annotated[str, typer.Option("--format", metavar="FORMAT", help="The format; auto detects it.")]
SettingsOption = Annotated[
    str, typer.Option(metavar="JSON", help="Settings of the format, as a JSON object, such as spaces or the env.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")]


@app.command("info", cls=EachOptionOnce)
def info(
    sources: Sources,
    format: FormatOption = "auto",  # noqa: A002
    settings: SettingsOption = "{}",
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show what is in a data set: spaces, episodes, returns, lengths, coverage."""
    from rollax.offline.describe import describe
    from rollax.runs.results import to_json

    with readable_errors(traceback):
        report = describe(_opened(sources, format, settings))
        print(to_json(report.as_json(), indent=2) if as_json else report)


@app.command("check", cls=EachOptionOnce)
def check(
    sources: Sources,
    format: FormatOption = "auto",  # noqa: A002
    settings: SettingsOption = "{}",
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Read a data set in full and report what is broken, with file and line; the exit code is then 1."""
    from rollax.offline.describe import describe
    from rollax.runs.results import to_json

    with readable_errors(traceback):
        report = describe(_opened(sources, format, settings), check=True)
        print(to_json(report.as_json(), indent=2) if as_json else report)
        if report.errors:
            raise typer.Exit(BROKEN)
        if not as_json:
            print("no errors")


@app.command("convert", cls=EachOptionOnce)
def convert(
    sources: Sources,
    out: Annotated[Path, typer.Option(metavar="PATH", help="The folder, or file, to write.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="rollax, minari, minari_arrow or json_lines.")] = "rollax",
    format: FormatOption = "auto",  # noqa: A002
    settings: SettingsOption = "{}",
    traceback: TracebackOption = False,
) -> None:
    """Write a data set in another format."""
    from rollax.offline.convert import convert as written
    from rollax.runs.display import shown_path

    with readable_errors(traceback):
        count = written(_opened(sources, format, settings), out, to)
        print(f"{count} trajectories in {shown_path(out)}")


@app.command("plot", cls=EachOptionOnce)
def plot(
    sources: Sources,
    out: PictureOption = Path("data.png"),
    format: FormatOption = "auto",  # noqa: A002
    settings: SettingsOption = "{}",
    traceback: TracebackOption = False,
) -> None:
    """Plot returns and lengths, and what observations and actions cover."""
    from rollax.offline.picture import draw_dataset
    from rollax.runs.display import shown_path

    with readable_errors(traceback):
        reader = _opened(sources, format, settings)
        with named_write_errors("The picture", out):
            draw_dataset(reader, out, ", ".join(sources))
        print(shown_path(out))


def _opened(sources: list[str], format: str, settings: str) -> DatasetReader:  # noqa: A002
    from rollax.offline.reader import open_dataset

    given: dict[str, Any] = parse_config(settings, "--settings")
    if format != "auto" and given.setdefault("format", format) != format:
        raise ConfigError("Two formats are given.", "--format and --settings", f"{format}, {given['format']}").expected(
            "one format", "leave one of them out"
        )
    return open_dataset(sources, **given)
