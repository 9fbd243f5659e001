"""Links of pages: from files of the repository to pages of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from website.repository import REPOSITORY, outside_fences

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


@dataclass
class Links:
    """Which page shows a file or a section, and the files that must have a page because something links to them.

    Attributes:
        pages: path of a file of the repository -> name of its page, without the suffix.
        sections: path of a file that is several pages -> anchor -> file of the page with that section, and its anchor
            there.
        shown: files that get a page with their source, and folders that get a list of their files; filled by
            `rewritten`.
        pictures: pictures that are copied; filled by `rewritten`.
    """

    pages: Mapping[str, str]
    sections: Mapping[str, Mapping[str, str]]
    shown: set[str] = field(default_factory=set)
    pictures: set[str] = field(default_factory=set)

    def rewritten(self, content: str, source: str, page: str) -> str:
        """The text of the file `source` with links as they must be on the page of the site named `page`.

        Raises:
            ValueError: a link leads to no file.
        """

        def replaced(match: re.Match[str]) -> str:
            bang, text, target = match.groups()
            if "://" in target:
                return match[0]
            place = self.target(target, source, page)
            if Path(text).name == Path(target.partition("#")[0]).name and place.partition("#")[0].endswith(".md"):
                text = ""  # the title of the page in the place of the name of its file
            return f"{bang}[{text}]({place})"

        return "".join(_LINK.sub(replaced, part) if is_text else part for is_text, part in outside_fences(content))

    def target(self, target: str, source: str, page: str) -> str:
        """The link `target` of the file `source`, as it is on the page `page`."""
        path, _, anchor = target.partition("#")
        file = os.path.normpath(Path(source).parent / path) if path else source
        if not (REPOSITORY / file).exists():
            raise ValueError(f"{source}: the link '{target}' leads to no file")
        if place := self.sections.get(file, {}).get(anchor):
            return relative(place, page)
        return relative(self.page_of(file), page) + (f"#{anchor}" if anchor and file in self.pages else "")

    def page_of(self, file: str) -> str:
        """The page or picture, with its suffix, for a file of the repository."""
        if Path(file).suffix in (".png", ".svg", ".gif"):
            self.pictures.add(file)
            return f"pictures/{Path(file).name}"
        if file in self.pages:
            return f"{self.pages[file]}.md"
        self.shown.add(file)
        return f"{source_page(file)}.md"


def source_page(file: str) -> str:
    """The name of the page that shows the source of a file."""
    return f"source/{file}"


def relative(target: str, page: str) -> str:
    """The path from the page named `page` to the file `target`; both are from the root of the site."""
    return os.path.relpath(target, Path(page).parent)
