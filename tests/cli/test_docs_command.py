"""`rollax docs`, and the pages that messages and docstrings name."""

import ast
import re
from collections.abc import Iterator

import pytest

from rollax.cli.docs import CONTENTS, FOLDER, names, sections, text_of
from rollax.errors import ConfigError, page, without_links
from tests.pages import REPOSITORY

DOCS = REPOSITORY / "docs"
_NAMED = re.compile(r"`rollax docs ([\w-]+)(?:#([\w-]+))?`")


def test_it_shows_a_page(rollax):
    assert rollax("docs", "glossary").stdout == (DOCS / "glossary.md").read_text(encoding="utf-8")
    assert rollax("docs").stdout == (DOCS / f"{CONTENTS}.md").read_text(encoding="utf-8")


def test_a_link_names_a_section():
    text = "# Title\n\n## First one\n\nText.\n\n### Inner\n\n```\n## no heading\n```\n\n## Second\n\nMore.\n"
    assert sections(text) == {
        "first-one": "## First one\n\nText.\n\n### Inner\n\n```\n## no heading\n```\n\n",
        "inner": "### Inner\n\n```\n## no heading\n```\n\n",
        "second": "## Second\n\nMore.\n",
    }
    assert text_of("docs/training.md#checkpoints") == text_of("training#checkpoints")
    assert text_of("training#checkpoints").startswith("## Checkpoints\n")


@pytest.mark.parametrize("wrong", ["no-such-page", "training#no-such-section", "", "../pyproject.toml"])
def test_an_unknown_page_is_refused(rollax, wrong):
    with pytest.raises(ConfigError):
        text_of(wrong)
    assert rollax("docs", wrong, code=2).stdout == ""


def test_links_in_descriptions_become_commands():
    assert without_links("see [a](estimates.md), [b](offline.md#formats)") == (
        f"see {page('estimates')}, {page('offline', 'formats')}"
    )


def test_the_pages_are_those_of_the_documentation():
    assert names() == sorted(path.stem for path in DOCS.glob("*.md"))
    assert FOLDER.resolve() == DOCS


@pytest.fixture(scope="module")
def nodes() -> list[ast.AST]:
    """The syntax of all modules of rollax."""
    sources = (source.read_text(encoding="utf-8") for source in (REPOSITORY / "rollax").rglob("*.py"))
    return [node for source in sources for node in ast.walk(ast.parse(source))]


@pytest.fixture(scope="module")
def texts(nodes) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_each_page_that_the_code_names_exists(nodes, texts):
    named = {*_calls(nodes), *(pair for text in texts for pair in _NAMED.findall(text))}
    assert len(named) > 10
    for name, section in named:
        text_of(f"{name}#{section}" if section else name)  # an error names what is missing


def test_no_text_names_a_file_that_an_installed_user_lacks(texts):
    assert [text for text in texts if re.search(r"\bdocs/[\w-]+\.md|CONTRIBUTING\.md", text)] == []


def _calls(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """The arguments of calls of `page`."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "page":
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if len(words) == len(node.args):
                yield str(words[0]), str(words[1]) if len(words) > 1 else ""
