"""`rollax train --logger`, and `loggers` in an experiment file."""

import sys

import pytest

from rollax.cli.parsing import parse_loggers
from rollax.errors import ConfigError

OWN = """
import rollax

class Mine(rollax.Logger):
    def __init__(self, file="mine.txt"):
        self.file = file

    def log(self, numbers, step):
        with open(self.file, "a") as file:
            file.write(f"{step}\\n")
"""


@pytest.fixture
def own(cwd, monkeypatch):
    """A module of the current folder with a logger."""
    (cwd / "my_loggers.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "my_loggers", raising=False)
    monkeypatch.syspath_prepend(cwd)
    yield cwd
    sys.modules.pop("my_loggers", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("csv", {"csv": {}}),
        ("wandb:project=mine", {"wandb": {"project": "mine"}}),
        ("wandb:project=mine,tags=[a,b],seed=3", {"wandb": {"project": "mine", "tags": ["a", "b"], "seed": 3}}),
        ("mlflow:tracking_uri=sqlite:///a.db", {"mlflow": {"tracking_uri": "sqlite:///a.db"}}),
        ("mod.ule:Class", {"mod.ule:Class": {}}),
        ("mod.ule:Class:a=1", {"mod.ule:Class": {"a": 1}}),
    ],
)
def test_loggers_of_options(text, expected):
    assert parse_loggers([text]) == [expected]


@pytest.mark.parametrize("text", ["=3", ":a=3", "", "csv:a=[", "csv:a=1,a=2"])
def test_mistakes_in_options(text):
    with pytest.raises(ConfigError, match="--logger"):
        parse_loggers([text])


def test_the_options_replace_the_default(rollax, cwd):
    out = rollax("train", "--run=FAKE", "--stop-iterations=2", "--out=here", "--logger=csv", "--logger", "jsonl").output
    assert (cwd / "here" / "progress.csv").exists()
    assert (cwd / "here" / "metrics.jsonl").exists()
    assert not list((cwd / "here").glob("events*"))
    assert "TensorBoard" not in out


def test_a_wrong_logger_is_refused_before_anything_is_made(rollax, cwd):
    done = rollax("train", "--run=FAKE", "--stop-iterations=2", "--logger=cvs", code=2)
    assert "did you mean 'csv'" in done.output
    assert not (cwd / "runs").exists()


def test_a_logger_of_ones_own_by_path(rollax, own):
    rollax("train", "--run=FAKE", "--stop-iterations=2", "--no-evaluate", "--logger=my_loggers:Mine:file=a.txt")
    assert (own / "a.txt").read_text().split() == ["100", "200"]


def experiment(loggers):
    return f"run: FAKE\nenv: Fake-v0\nstop: {{training_iteration: 2}}\nloggers: {loggers}\n"


def test_loggers_of_a_file(rollax, cwd):
    (cwd / "a.yaml").write_text(experiment("[jsonl, {csv: {}}]"))
    rollax("train", "-f", "a.yaml", "--out=here")
    assert (cwd / "here" / "progress.csv").exists()
    assert (cwd / "here" / "metrics.jsonl").exists()
    rollax("train", "-f", "a.yaml", "--out=there", "--logger=tensorboard")
    assert not (cwd / "there" / "progress.csv").exists()
    (cwd / "a.yaml").write_text(experiment("csv"))
    assert "loggers" in rollax("train", "-f", "a.yaml", "--out=where", code=2).output


def test_code_of_a_file_requires_trust(rollax, own):
    (own / "a.yaml").write_text(experiment("['my_loggers:Mine']"))
    assert "--trust-code" in rollax("train", "-f", "a.yaml", code=2).output
    assert "my_loggers" not in sys.modules
    rollax("train", "-f", "a.yaml", "--no-evaluate", "--trust-code")
    assert (own / "mine.txt").read_text().split() == ["100", "200"]
