"""`rollax docs`: the pages of the documentation, which are in the wheel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

import rollax
from rollax.cli.console import TracebackOption, readable_errors
from rollax.errors import ConfigError

FOLDER = Path(rollax.__file__).parent / "docs"
CONTENTS = "contents"
_HEADING = re.compile(r"^(#+) (.*)$")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.md"))


def complete_page(incomplete: str) -> list[str]:
    return [name for name in names() if name.startswith(incomplete)]


def docs(
    page: Annotated[
        str,
        typer.Argument(metavar="PAGE[#SECTION]", help="A page, or a section of it.", autocompletion=complete_page),
    ] = CONTENTS,
    traceback: TracebackOption = False,
) -> None:
    """Show a page of the documentation; without a name, the list of pages."""
    with readable_errors(traceback):
        _show(text_of(page))


def text_of(page: str) -> str:
    """Returns a page, or one of its sections with all subsections, as Markdown.

    Args:
        page: a name such as `training` or `training#checkpoints`; links between the pages are accepted too.
    Raises:
        ConfigError: there is no such page or section.
    """
    name, _, section = page.rpartition("/")[2].partition("#")
    name = name.removesuffix(".md")
    if name not in names():
        raise ConfigError.unknown("page", name, names(), "rollax docs")
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    if not section:
        return text
    found = sections(text)
    if section not in found:
        raise ConfigError.unknown("section", section, found, f"rollax docs {name}")
    return found[section]


def sections(text: str) -> dict[str, str]:
    """Returns anchor -> text for each section below the title of a page; anchors are as on GitHub."""
    lines, fenced, begun = text.splitlines(keepends=True), False, []
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and (heading := _HEADING.match(line)):
            begun.append((number, len(heading[1]), heading[2]))
    found = {}
    for i, (number, level, heading) in enumerate(begun):
        end = next((later for later, other, _ in begun[i + 1 :] if other <= level), len(lines))
        if level > 1:
            found[re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")] = "".join(lines[number:end])
    return found


def _show(text: str) -> None:
    """Prints Markdown: unchanged to a pipe or file, rendered and in a pager on a terminal."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-FRX")  # as git does: colors, and no pager for what fits the screen
    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)))
