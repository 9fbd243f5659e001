"""Builds the site: `python -m website [FOLDER]`. Any warning, such as a dead link, is an error."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from website.assembly import write_pages
from website.repository import REPOSITORY


def build(folder: Path) -> int:
    """Writes the site to `folder`/html, and returns the exit status of Sphinx: 0 without any warning."""
    write_pages(folder / "source")
    arguments = ["--fail-on-warning", "--keep-going", "--quiet", "--nitpicky", "-b", "html"]
    places = ["-c", str(REPOSITORY / "website"), "-d", str(folder / "doctrees")]
    return sphinx([*arguments, *places, str(folder / "source"), str(folder / "html")])


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "build" / "website"
    status = build(output.resolve())
    if status == 0:
        print(f"Open {output / 'html' / 'index.html'}")
    sys.exit(status)
