"""Files of the repository, and the page of the site that shows each."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LANGUAGES = {".cs": "csharp", ".html": "html", ".js": "js", ".md": "markdown", ".py": "python", ".yaml": "yaml"}
"""Suffix of a file that has a page of its own -> the language of its source."""
_FENCE = re.compile(r"(^(?:```|\$\$).*?^(?:```|\$\$)[^\n]*$)", re.DOTALL | re.MULTILINE)


def read(path: str) -> str:
    """The text of a file, by its path from the root of the repository."""
    return (REPOSITORY / path).read_text(encoding="utf-8")


def outside_fences(content: str) -> list[tuple[bool, str]]:
    """Parts of a page in order, and whether each is text outside of fenced code and equations."""
    return [(index % 2 == 0, part) for index, part in enumerate(_FENCE.split(content))]


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def headings(content: str) -> list[str]:
    """The headings of a page, without those of code comments."""
    text = "".join(part for is_text, part in outside_fences(content) if is_text)
    return re.findall(r"^#+ (.*)$", text, re.MULTILINE)


def section(content: str, heading: str) -> str:
    """The text under `## heading`, up to the next such heading."""
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", content, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"there is no section '{heading}'")
    return match[1].strip() + "\n"


def first_block(content: str, language: str) -> str:
    """The first fenced block of a language, without its fences."""
    match = re.search(rf"^```{language}\n(.*?)^```$", content, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"there is no block of '{language}'")
    return match[1]


def fenced(file: str) -> str:
    """The text of a file as a block of code, with its language."""
    text = read(file)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`{3,}", text)), 3)
    return f"{fence}{LANGUAGES.get(Path(file).suffix, 'text')}\n{text.rstrip()}\n{fence}\n"
