"""The gallery: `examples/README.md`, and a page for each example with its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from website.pages import Page
from website.repository import REPOSITORY, fenced, read

_SOURCE = "examples/README.md"


def page_of_example(file: str) -> str:
    """The name of the page of an example, by the path of its file."""
    name = file.removeprefix("examples/")
    return f"examples/{name.partition('/')[0] if '/' in name else name}"


def examples() -> list[str]:
    """The files that examples/README.md lists, in its order."""
    return [f"examples/{name}" for name in re.findall(r"\]\(([\w/.-]+\.(?:py|yaml))\)", read(_SOURCE))]


def example_pages() -> Iterator[Page]:
    """The gallery by topic, and a page for each example.

    Raises:
        ValueError: examples/README.md leaves out a script.
    """
    files = examples()
    if absent := {f"examples/{path.name}" for path in (REPOSITORY / "examples").glob("*.py")} - set(files):
        raise ValueError(f"{_SOURCE} leaves out {', '.join(sorted(absent))}")
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *(f"/{page_of_example(file)}" for file in files), "```"])
    yield Page("examples/index", _SOURCE, f"{_gallery(read(_SOURCE))}\n\n{toctree}\n")
    for file in files:
        picture = _picture(file)
        shown = f"![]({'../' * file.count('/')}{picture})\n\n" if picture else ""
        name = page_of_example(file)
        yield Page(name, file, f"# {Path(name).name}\n\n{shown}{fenced(file)}")


def _gallery(content: str) -> str:
    """The list with a grid of cards in the place of each table."""

    def cards(match: re.Match[str]) -> str:
        rows = re.findall(r"^\| (.*) \| (.*) \|$", match[2], re.MULTILINE)
        named = [(name, shows) for cell, shows in rows for name in re.findall(r"\]\(([\w/.-]+)\)", cell)]
        grid = "\n".join(_card(f"examples/{name}", shows) for name, shows in named)
        return f"## {match[1]}\n\n::::{{grid}} 1 2 2 3\n:gutter: 2\n\n{grid}\n::::\n"

    return re.sub(r"^(.+):\n\n\| example \|.*\n\|-.*\n((?:\|.*\n?)+)", cards, content, flags=re.MULTILINE)


def _card(file: str, shows: str) -> str:
    picture = _picture(file)
    top = f"![](../{picture})\n\n" if picture else ""
    title = file.removeprefix("examples/").removesuffix("/__main__.py")
    lines = [
        f":::{{grid-item-card}} {title}",
        f":link: /{page_of_example(file)}",
        ":link-type: doc",
        "",
        top + _about(file, shows),
    ]
    return "\n".join([*lines, ":::"])


def _about(file: str, shows: str) -> str:
    """The first paragraph of a script's docstring, and of another file what the list says that it shows."""
    if file.endswith(".py"):
        return (ast.get_docstring(ast.parse(read(file))) or "").partition("\n\n")[0]
    return f"{shows[0].upper()}{shows[1:]}."


def _picture(file: str) -> str | None:
    """The picture of an example: its recording or screenshot, or its learning curve."""
    stem = Path(page_of_example(file)).stem
    named = [f"docs/images/{stem.replace('_', '-')}{suffix}" for suffix in (".gif", ".png")]
    curves = [f"docs/curves/{start}{stem.replace('_', '')}.svg" for start in ("own", "")]
    return next((picture for picture in [*named, *curves] if (REPOSITORY / picture).exists()), None)
