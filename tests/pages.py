"""The pages of the documentation, and their blocks of code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.marks import long_except

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


each_page_at_length = pytest.mark.parametrize("page", long_except({"README"}, {page.stem: page for page in PAGES}))


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and its first line number."""

    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    content = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", content, re.DOTALL | re.MULTILINE):
        if match[1] in languages:
            yield Block(match[1], match[2], content.count("\n", 0, match.start(2)))


def write_files(page: Path, folder: Path) -> None:
    """Writes the blocks whose first line is a comment with the name of a file, which every YAML block has."""
    for block in blocks(page, "yaml", "python"):
        name = re.match(r"# (\S+\.(?:yaml|py))\n", block.text)
        assert name or block.language == "python", "a YAML block begins with a comment that names its file"
        if name:
            (folder / name[1]).write_text(block.text, encoding="utf-8")
