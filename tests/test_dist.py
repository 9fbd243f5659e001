"""The description of the packages, which has no files beside it."""

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from types import ModuleType

import pytest

from rollax.cli.docs import names
from tests.pages import REPOSITORY


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script `.ci/dist` as a module."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("rollax_dist", str(REPOSITORY / ".ci" / "dist"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_links_become_commands(dist):
    text = "See [envs](docs/environments.md), [docs/gpus.md](docs/gpus.md), [B](B.md), [one](https://example.org).\n"
    assert dist.without_links(text) == (
        "See envs (`rollax docs environments`), `rollax docs gpus`, B, [one](https://example.org).\n"
    )
    assert dist.without_links("One.\n\n![x](docs/a.svg)\n\nThe curves\nshow.\n\n## Two\n") == "One.\n\n## Two\n"


def test_the_description_names_pages_that_exist(dist):
    text = dist.without_links((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert "](" not in text
    shown = re.findall(r"`rollax docs ([\w-]+)", text)
    assert len(shown) > 10
    assert set(shown) <= set(names())
