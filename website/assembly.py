"""Writes the pages of the site as Markdown, for Sphinx with `conf.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from website.algorithm_pages import algorithm_pages, places
from website.api_pages import api_pages, source_files, without_docstring
from website.example_pages import example_pages, examples, page_of_example
from website.links import Links, source_page
from website.pages import MAIN, Page, pages_of_files
from website.repository import LANGUAGES, REPOSITORY, fenced


def write_pages(folder: Path) -> None:
    """Writes all pages and pictures to `folder`, and removes files that no longer belong to it.

    Files that have not changed are left alone, so that Sphinx reads only the others again.

    Raises:
        ValueError: a link leads to no file, or a public name has no docstring.
    """
    if names := without_docstring():
        raise ValueError(f"public names without a docstring: {', '.join(names)}")
    files: dict[Path, bytes] = {}
    pages = [*pages_of_files(), *algorithm_pages(), *api_pages(), *example_pages()]
    links = _links(pages)
    for page in pages:
        files[folder / f"{page.name}.md"] = links.rewritten(page.text, page.source, page.name).encode()
    links.shown |= source_files()
    for page in _source_pages(links):
        files[folder / f"{page.name}.md"] = page.text.encode()
    for picture in links.pictures:
        files[folder / "pictures" / Path(picture).name] = (REPOSITORY / picture).read_bytes()
    for path, content in files.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()


def _links(pages: list[Page]) -> Links:
    whole = {page.source: page.name for page in pages if page.source.startswith("docs/") and "/" not in page.name}
    of_examples = {file: page_of_example(file) for file in examples()}
    sections = {"docs/algorithms.md": places()}
    return Links({**whole, **of_examples, **MAIN}, sections)


def _source_pages(links: Links) -> Iterator[Page]:
    """Pages with the source of the files that others link to, and lists of the files of such folders."""
    yield Page("source/index", "", "---\norphan: true\n---\n\n# Source files\n\n```{toctree}\n:glob:\n\n**\n```\n")
    waiting = sorted(links.shown)
    while waiting:
        file = waiting.pop()
        path, name = REPOSITORY / file, source_page(file)
        if path.is_dir():
            names = sorted(each.name for each in path.iterdir() if each.is_file())
            pages = {each: f"[{each}]({path.name}/{each}.md)" for each in names if Path(each).suffix in LANGUAGES}
            waiting += [f"{file}/{each}" for each in pages]
            body = "\n".join(f"- {pages.get(each, each)}" for each in names)
        else:
            body = fenced(file)
        yield Page(name, file, f"---\norphan: true\n---\n\n# {file}\n\n{body}\n")
