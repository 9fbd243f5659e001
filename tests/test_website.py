"""The documentation site: it builds without a warning, and needs nothing but its own files."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from rollax.algorithms.registry import ALGORITHMS
from tests.pages import REPOSITORY
from tests.test_docs import table

pytest.importorskip("sphinx", reason="the extra docs is not installed")

from website.algorithm_pages import NO, YES, support
from website.docstrings import restructured
from website.links import Links


class Page(HTMLParser):
    """The ids of a page, the places that it links to, and those that the browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "search", "index", "next", "prev"):
            self.loaded.add(values["href"])
        elif "src" in values:
            self.loaded.add(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("website")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "website", str(folder)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.long
def test_every_link_leads_to_a_page_and_an_anchor(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 100
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            # Furo's button "back to top" leads to an empty anchor; `:~:text=` is a place that the browser searches for.
            anchor = "" if parts.fragment.startswith(":~:") else unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert wrong == []


@pytest.mark.long
def test_pages_load_files_of_the_site_only(site):
    wrong = []
    for path in site.rglob("*.html"):
        for place in Page(path).loaded:
            parts = urlsplit(place)
            if parts.scheme == "data" or place == "#":  # the search and the index link to themselves
                continue
            if parts.scheme or parts.netloc or not (path.parent / unquote(parts.path)).is_file():
                wrong.append(f"{path.relative_to(site)}: {place}")
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert wrong == []
    assert "url(http" not in styles
    assert "@import" not in styles


@pytest.mark.long
def test_every_algorithm_has_a_page_with_its_keys(site):
    for name in ALGORITHMS:
        text = (site / "algorithms" / f"{name.lower()}.html").read_text(encoding="utf-8")
        assert "train_batch_size" in text
        assert f'id="rollax.{name.replace("APEX", "Apex").replace("Apex_DDPG", "ApexDDPG")}' in text


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_of_features_says_what_the_algorithm_accepts(name):
    rows = table(REPOSITORY / "docs" / "algorithms.md", "| algorithm | discrete |")
    discrete, masked, _, continuous, _, recurrent, central = next(row[1:] for row in rows if row[0] == name)
    accepted = support(name)
    features = ("Discrete actions", "action masks", "Box actions", "memory (LSTM, GRU, transformer)")
    assert [accepted[each] for each in features] == [discrete, masked, continuous, recurrent]
    assert accepted["centralized critic"] == central
    assert {YES, NO} >= {discrete, masked, continuous, recurrent, central}


def links() -> Links:
    pages = {"README.md": "index", "docs/training.md": "training", "docs/algorithms.md": "algorithms"}
    return Links(pages, {"docs/algorithms.md": {"ppo": "algorithms/ppo.md", "redq": "algorithms/sac.md#redq"}})


@pytest.mark.parametrize(
    ("source", "page", "link", "target"),
    [
        ("docs/training.md", "training", "algorithms.md", "algorithms.md"),
        ("docs/training.md", "training", "algorithms.md#ppo", "algorithms/ppo.md"),
        ("docs/algorithms.md", "algorithms/ppo", "#redq", "sac.md#redq"),
        ("docs/algorithms.md", "algorithms/ppo", "training.md#results", "../training.md#results"),
        ("docs/training.md", "training", "../rollax/algorithms/ppo.py", "source/rollax/algorithms/ppo.py.md"),
        ("README.md", "index", "docs/curves/overview.svg", "pictures/overview.svg"),
    ],
)
def test_links_between_files_become_links_between_pages(source, page, link, target):
    assert links().target(link, source, page) == target


def test_a_link_to_no_file_is_an_error():
    with pytest.raises(ValueError, match=r"docs/training\.md.*absent\.md"):
        links().rewritten("See [this](absent.md).", "docs/training.md", "training")


def test_links_in_code_stay():
    text = "```python\nd[a](absent.md)\n```\n"
    assert links().rewritten(text, "docs/training.md", "training") == text


def test_docstrings_become_restructured_text():
    lines = ["Sum of *all* rows, see `PPOTrainer` and `x[0]`.", "", "Source: Eq. 1:", "    L = |a_t| * b_"]
    lines += ["Deviations.", "", "Args:", "    x: [T] values of `RolloutWorker`.", "Returns:", "    [] sum."]
    expected = [
        r"Sum of \*all\* rows, see :py:obj:`PPOTrainer <rollax.PPOTrainer>` and ``x[0]``.",
        "",
        "Source: Eq. 1:",
        "",
        ".. code-block:: text",
        "",
        "    L = |a_t| * b_",
        "",
        "Deviations.",
        "",
        "",
        "Args:",
        "    x: [T] values of :py:obj:`RolloutWorker <rollax.RolloutWorker>`.",
        "",
        "Returns:",
        "    [] sum.",
    ]
    assert list(restructured(lines, "rollax.ops.values")) == expected
