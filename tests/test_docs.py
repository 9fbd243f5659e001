"""README.md and docs/ agree with the code.

`python -m tests.test_docs` writes the tables of config keys, from the fields of the configs, those of presets, from
their dicts, and those of public names, from their docstrings.
"""

import importlib
import re
import shlex
import signal
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

import rollax
from rollax import PPOTrainer, preset
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.cli import app
from rollax.config import TrainerConfig
from rollax.config.field_group import inherited
from rollax.config.presets import PRESETS
from tests.api_tables import with_names
from tests.pages import PAGES, REPOSITORY, blocks, each_page_at_length, write_files

CONTENTS = REPOSITORY / "docs" / "contents.md"
_COMMON = TrainerConfig.model_fields
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def commands(page: Path) -> list[list[str]]:
    """The `rollax` commands of a page, without the first word."""
    lines = [line for block in blocks(page, "bash") for line in block.text.splitlines()]
    assert all(line.startswith("rollax ") for line in lines), "a bash block holds rollax commands, one on each line"
    return [shlex.split(line)[1:] for line in lines]


@each_page
def test_every_fence_has_a_language_that_is_checked(page):
    content = page.read_text(encoding="utf-8")
    assert content.count("\n```") % 2 == 0
    checked = {"python", "bash", "yaml", "console", "js", "csharp"}
    assert set(re.findall(r"^```(\w+)$", content, re.MULTILINE)) <= checked


@pytest.fixture(scope="module")
def known_commands():
    return typer.main.get_command(app).commands  # type: ignore[attr-defined]


@each_page
def test_commands_are_known_to_the_command_line(page, known_commands):
    for words in commands(page):
        command = known_commands[words[0]]
        command.make_context(words[0], words[1:])  # an unknown option or a wrong value raises


@each_page_at_length
def test_commands_run(page, own_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for words in commands(page):
        if any(word.startswith("--video") for word in words):
            continue  # recording has its own test
        ended = 0
        if words[0] == "serve":  # on a free port, until a signal
            words = [*(word for word in words if not word.startswith("--port")), "--port=0"]
            monkeypatch.setattr("rollax.cli.serve.wait_for_signal", lambda _: signal.raise_signal(signal.SIGTERM))
            # A learning server prints its addresses once it waits for signals.
            monkeypatch.setattr(
                "rollax.serving.learning_run.addresses_of", lambda _: signal.raise_signal(signal.SIGTERM) or []
            )
            ended = 128 + signal.SIGTERM
        done = CliRunner().invoke(app, words)
        assert done.exit_code == ended, f"{shlex.join(words)}\n{done.output}"


@each_page
def test_make_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make ([a-z-]+)$|`make ([a-z-]+)`", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {first or second for first, second in named} <= set(targets)


@each_page
def test_links_are_valid(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert not anchor or path.suffix != ".md" or anchor in anchors(path), f"{target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    content = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", content, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@each_page
def test_lines_are_not_too_long(page):
    content = page.read_text(encoding="utf-8")
    prose = re.sub(r"^\|.*\|$|^rollax .*$", "", content, flags=re.MULTILINE)  # a table row or a command is one line
    assert [line for line in prose.splitlines() if len(line) > 120] == []


@each_page
def test_tables_of_config_keys_equal_the_fields(page):
    content = page.read_text(encoding="utf-8")
    assert with_tables(content) == content, "run `python -m tests.test_docs`, which writes the tables anew"


@each_page
def test_tables_of_public_names_equal_the_docstrings(page):
    content = page.read_text(encoding="utf-8")
    assert with_names(content) == content, "run `python -m tests.test_docs`, which writes the tables anew"


def test_the_page_of_public_names_is_complete():
    names, _, _ = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8").partition("## Modules for")
    cells = re.findall(r"^\|.*", names, re.MULTILINE)
    assert {name for row in cells for name in re.findall(r"`(\w+)`", row)} >= set(vars(rollax)["_MODULE_OF"])


def test_the_table_of_algorithms_is_complete():
    rows = table(REPOSITORY / "docs" / "algorithms.md", "| algorithm | discrete |")
    assert {row[0] for row in rows} == set(ALGORITHMS)


def test_the_contents_link_to_every_page():
    assert _linked(CONTENTS) >= {*PAGES} - {REPOSITORY / "README.md", CONTENTS}
    assert CONTENTS in _linked(REPOSITORY / "README.md")


def _linked(page: Path) -> set[Path]:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in links}


def test_defaults_in_the_table_of_stable_baselines3_are_right():
    for algorithm, key, default, _ in table(
        REPOSITORY / "docs" / "coming-from-sb3-and-cleanrl.md", "| algorithm | key"
    ):
        assert default == f"`{_value(get_trainer_class(algorithm).config_class(), key.strip('`'))!r}`", (algorithm, key)


def test_the_table_of_result_keys_is_complete():
    rows = table(REPOSITORY / "docs" / "training.md", "| key | meaning |")
    described = {key for row in rows for key in re.findall(r"`(\w+)`", row[0])}
    with PPOTrainer("CartPole-v1", {"train_batch_size": 64, "sgd_minibatch_size": 64, "num_sgd_iter": 1}) as trainer:
        assert described == set(trainer.train())


def test_the_table_of_statistics_equals_those_of_the_policies():
    rows = table(REPOSITORY / "docs" / "training.md", "| algorithm | statistics |")
    documented = {name: tuple(re.findall(r"`(\w+)`", row[1])) for row in rows for name in row[0].split(", ")}
    assert documented == {name: get_trainer_class(name).policy_class.statistics for name in ALGORITHMS}


def table(page: Path, header: str) -> list[list[str]]:
    """The cells of the rows of the table whose first line begins with `header`."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(header):
            break
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, header
    return rows


def with_tables(content: str) -> str:
    """A page with new tables between its marks `table` or `preset` and `end`.

    The mark of a preset has its name. The mark of a table is `table: module:Config`, or `table: module:Config besides
    module:Other` if the page has the keys of the other configs elsewhere.
    """

    def written(match: re.Match) -> str:
        config, *others = (
            getattr(importlib.import_module(module), name) for module, name in re.findall(r"([\w.]+):(\w+)", match[1])
        )
        return f"<!-- table: {match[1]} -->\n{config_table(config, others)}<!-- end -->"

    content = re.sub(r"<!-- table: (.*?) -->\n(?:.*?)<!-- end -->", written, content, flags=re.DOTALL)
    return re.sub(r"<!-- preset: (.*?) -->\n(?:.*?)<!-- end -->", preset_table, content, flags=re.DOTALL)


def preset_table(mark: re.Match) -> str:
    """The mark of a preset with a Markdown table of its keys, and of the defaults that they replace."""
    lines = ["| algorithm | key | preset | default |", "|---|---|---|---|"]
    for algorithm in PRESETS[mark[1]]:
        keys = preset(mark[1], algorithm)
        of_model = {f"model.{key}": value for key, value in keys.pop("model", {}).items()}
        default = get_trainer_class(algorithm).config_class()
        for key, value in {**keys, **of_model}.items():
            lines.append(f"| {algorithm} | `{key}` | `{value!r}` | `{_value(default, key)!r}` |")
    return "\n".join([f"<!-- preset: {mark[1]} -->", *lines, "<!-- end -->"])


def _value(config: TrainerConfig, key: str) -> Any:
    """The value of a key such as `lambda` or `model.use_lstm`."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, "lambda_" if part == "lambda" else part)
    return value


def config_table(config: type[BaseModel], others: Sequence[type[BaseModel]] = ()) -> str:
    """A Markdown table of the fields of a config, then the names of those that it refuses.

    Fields that are the same in one of the `others`, or else in all algorithms, are left out.
    """
    known = {} if issubclass(TrainerConfig, config) else {name: _row(name, field) for name, field in _COMMON.items()}
    for other in others:
        known |= {name: _row(name, field) for name, field in other.model_fields.items()}
    refused = never_in_effect(config)
    rows = {name: _row(name, field) for name, field in config.model_fields.items() if name not in refused}
    listed = [row for name, row in rows.items() if row != known.get(name)]
    lines = ["| key | default | meaning |", "|---|---|---|", *listed, ""] if listed else []
    for other in others:
        refused -= never_in_effect(other)
    if refused:
        names = ", ".join(f"`{name}`" for name in sorted(refused))
        lines += textwrap.wrap(f"Keys without effect, which raise an error: {names}.", 120)
    return "\n".join(lines).strip() + "\n"


def never_in_effect(config: type[BaseModel]) -> set[str]:
    """The keys that a config refuses with any other values."""
    return {key for key, condition in inherited(config, "requires").items() if isinstance(condition, str)}


def _row(name: str, field: FieldInfo) -> str:
    key = field.validation_alias if isinstance(field.validation_alias, str) else name
    default = field.default
    if isinstance(default, BaseModel):
        default = default.model_dump(exclude_unset=True)
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{key}` | `{default!r}` | {meaning} |"


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_names(with_tables(each.read_text(encoding="utf-8"))), encoding="utf-8")
