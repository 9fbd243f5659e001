"""Completion in shells, as the functions that Typer installs in them ask for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.cli.completion import complete_key, complete_run, complete_setting
from rollax.config.validation_errors import keys_with_parts
from rollax.core.frozen import fields_by_key
from tests.pages import REPOSITORY
from tests.python_process import output_of

_SHOW_BASH = """
source <(_ROLLAX_COMPLETE=source_bash {program})
COMP_WORDS=({words}) COMP_CWORD={number}
_rollax_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The `rollax` of this checkout."""
    path = tmp_path / "bin" / "rollax"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from rollax.cli import main\nsys.argv[0] = 'rollax'\nmain()\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two run folders and another one in `runs`, and two others."""
    for name in ("runs/one", "runs/two", "runs/another", "alone/inner", "empty"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/one", "runs/two"):
        (tmp_path / name / "result.jsonl").touch()
    return tmp_path


def in_bash(program: Path, words: str, cwd: Path) -> list[str]:
    """What bash offers for the last of these words, split as bash splits them."""
    script = _SHOW_BASH.format(program=program, words=words, number=len(words.split()) - 1)
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=cwd, text=True, capture_output=True, check=True)
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tra", ["train"]),
        ("train --stop-re", ["--stop-reward"]),
        ("train --run TD", ["TD3", "TD3BC", "TD7"]),
        ("train --run = TD", ["TD3", "TD3BC", "TD7"]),
        ("train --run = PPO --env = CartPole", ["CartPole-v0", "CartPole-v1"]),
        ("evaluate ru", ["runs/one", "runs/two", "runs/another"]),  # runs before other folders
        ("resume runs/o", ["runs/one"]),
        ("plot al", ["alone/inner"]),
        ("train --set lr = 1 --set normalize_r", ["normalize_rewards=true", "normalize_rewards=false"]),
        ("train --set lr = 1 --set = normalize_r", ["normalize_rewards=true", "normalize_rewards=false"]),
        ("train --set twin_q = t", ["true"]),
        ("train --set = twin_q = t", ["true"]),
        ("train --set = twin_q =", ["true", "false"]),
        ("docs glo", ["glossary"]),
    ],
)
def test_bash_completes(program, runs, words, found):
    """`=` is a word of its own."""
    assert in_bash(program, f"rollax {words}", runs) == found


def test_all_config_keys_are_completed():
    offered = set(complete_key(""))
    for name in ALGORITHMS:
        assert set(fields_by_key(get_trainer_class(name).config_class)) <= offered
    assert set(complete_key("lam")) >= {"lam", "lambda"}


class Parsed:
    """A command line whose settings so far are `settings`."""

    def __init__(self, *settings: str) -> None:
        self.params = {"settings": list(settings)}


def test_all_settings_are_completed():
    """Keys of a section have its name; a section itself is a dict, which has no value on a command line."""
    known = {key for name in ALGORITHMS for key in keys_with_parts(get_trainer_class(name).config_class)}
    sections = {key.partition(".")[0] for key in known if "." in key}
    assert set(complete_setting(Parsed(), "")) == {f"{key}=" for key in known - sections}


@pytest.mark.short(every=5)
@pytest.mark.parametrize(
    ("settings", "incomplete", "found"),
    [
        ([], "model.normalization", [f"model.normalization={x}" for x in ("layer", "batch", "batch_renorm", "null")]),
        ([], "normalize_r", ["normalize_rewards=true", "normalize_rewards=false"]),
        ([], "num_w", ["num_workers=", "num_workers=0"]),
        ([], "model.conv_", ["model.conv_activation=", "model.conv_dense=", "model.conv_filters="]),
        ([], "normalize_rewards=t", ["normalize_rewards=true"]),
        (["lr=1", "normalize_rewards="], "t", ["true"]),
        (["model.fcnet_hiddens="], "", ["[64,64]"]),
        (["lr=1"], "model.normalization=b", ["model.normalization=batch", "model.normalization=batch_renorm"]),
        ([], "there_is_no_such_key", []),
        ([], "there_is_no_such_key=", []),
    ],
)  # fmt: skip
def test_settings_and_their_values(settings, incomplete, found):
    assert complete_setting(Parsed(*settings), incomplete) == found


def test_folders_of_runs(tmp_path, monkeypatch):
    """A folder that is no run is completed by what it contains, also if its whole name is there already."""
    monkeypatch.chdir(tmp_path)
    for run in ("runs/old/one", "runs/old/two", "empty"):
        (tmp_path / run).mkdir(parents=True)
    (tmp_path / "runs" / "old" / "two" / "result.jsonl").touch()
    inside = ["runs/old/two", "runs/old/one"]
    assert [complete_run(begun) for begun in ("r", "runs", "runs/", "runs/old")] == [inside] * 4
    assert complete_run("empty") == ["empty"]
    assert complete_run("runs/old/tw") == ["runs/old/two"]
    assert complete_run("there is none") == []


def test_options_are_read_without_the_packages_that_train():
    """Completions and `--help` import the modules of all commands, but not what these commands use."""
    code = "import sys, rollax.cli; print(*{'gymnasium', 'jax', 'numpy', 'pydantic', 'yaml'} & sys.modules.keys())"
    assert output_of("-c", code) == "\n"


@pytest.mark.parametrize("call", ["complete_key('lam')", "complete_algorithm('P')", "config_section()"])
def test_completions_of_keys_import_no_configs(call):
    code = f"import sys; from rollax.cli import completion; completion.{call}; print('pydantic' in sys.modules)"
    assert output_of("-c", code) == "False\n"


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(program, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    environment = {**os.environ, "_ROLLAX_COMPLETE": f"source_{shell}"}
    script = subprocess.run([program], env=environment, text=True, capture_output=True, check=True).stdout
    (tmp_path / "script").write_text(script)
    assert "rollax" in script
    subprocess.run([shell, "-n", tmp_path / "script"], check=True, capture_output=True)
