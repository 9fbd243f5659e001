"""`Page`, and the pages that come from Markdown files of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from website.repository import REPOSITORY, first_block, read, section

MAIN = {
    "README.md": "index",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "BENCHMARKS.md": "benchmarks",
    "examples/README.md": "examples/index",
}
"""Files outside of `docs` -> the name of their page."""


class Page(NamedTuple):
    """A page of the site.

    Attributes:
        name: its path in the site, without a suffix.
        source: the file of the repository that its relative links start from.
        text: MyST Markdown, with the links of the repository.
    """

    name: str
    source: str
    text: str


def pages_of_files() -> Iterator[Page]:
    """The landing page and the files that are shown as they are."""
    readme = read("README.md")
    before, _, _ = readme.partition("\n## ")
    picture = re.search(r"^!\[.*\)$", before, re.MULTILINE)
    parts = {
        "lead": before[: picture.start() if picture else None].partition("\n")[2].strip(),
        "picture": picture[0] if picture else "",
        "commands": first_block(section(readme, "Install"), ""),
        "example": first_block(section(readme, "First example"), "python"),
    }
    landing = read("website/landing.md")
    yield Page("index", "README.md", re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]].strip(), landing))
    for file in ("CONTRIBUTING.md", "CHANGELOG.md", "BENCHMARKS.md"):
        yield Page(MAIN[file], file, read(file))
    for path in sorted((REPOSITORY / "docs").glob("*.md")):
        if path.name not in ("algorithms.md", "api.md"):
            yield Page(path.stem, f"docs/{path.name}", read(f"docs/{path.name}"))
