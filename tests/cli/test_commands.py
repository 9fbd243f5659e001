"""`rollax evaluate`, `rollax list`, and the command as a whole."""

import signal
import sys
from types import ModuleType

import pytest
import typer

import rollax as package
from rollax.cli import app, console
from tests.cli.fake_algorithm import FakeTrainer, open_fake
from tests.python_process import output_of


@pytest.fixture
def run(rollax, cwd):
    rollax("train", "--run=FAKE", "--stop-iterations=3", "--checkpoint-frequency=1", "--out=run")
    return cwd / "run"


def test_evaluate_a_checkpoint(rollax, run):
    done = rollax("evaluate", run / "checkpoints" / "checkpoint_000001", "--episodes=2")
    assert done.output.splitlines() == [
        "FAKE on Fake-v0",
        "episode 1  reward 20.00",
        "episode 2  reward 21.00",
        "mean reward 20.50 over 2 (lowest 20.00, highest 21.00)",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "episode 1  reward 60.00\n"),  # of the newest checkpoint
        (["--quiet"], "mean reward 60.00 over 1 (lowest 60.00, highest 60.00)\n"),
        (["--video=clips"], "video clips/episode-0.mp4\n"),
        (["--env=Other-v0"], "FAKE on Other-v0\n"),
    ],
    ids=["newest", "quiet", "video", "env"],
)
def test_evaluate_a_run(rollax, run, options, said):
    output = rollax("evaluate", run, "--episodes=1", *options).output
    assert said == output if "--quiet" in options else said in output


def test_evaluate_a_run_that_replaces_its_checkpoint(rollax, run, monkeypatch):
    def opened_later(checkpoint, **opening):
        (run / "checkpoints" / "checkpoint_000003").rename(run / "checkpoints" / "checkpoint_000004")
        return open_fake(checkpoint, **opening)

    monkeypatch.setattr("rollax.cli.commands.open_trainer", opened_later)
    assert "episode 1  reward 60.00" in rollax("evaluate", run, "--episodes=1").output


def test_evaluate_without_a_checkpoint(rollax, cwd):
    (cwd / "empty" / "checkpoints").mkdir(parents=True)
    assert "The run has no checkpoint." in rollax("evaluate", "empty", code=2).output


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    "command",
    [
        *(["evaluate"], ["doctor"], ["plot"], ["resume"], ["train", "--resume"], ["serve"]),
        *(["export", "--out=policy.onnx"], ["share", "--to=shared"], ["play"]),
    ],
    ids=" ".join,
)
def test_a_folder_of_several_seeds_is_named(rollax, run, cwd, command):
    (cwd / "set").mkdir()
    run.rename(cwd / "set" / "seed-3")
    done = rollax(*command, "set", code=2)
    assert "seed-3" in done.output or "--seeds" in done.output
    assert "set/seed-3" in done.output.replace("\n", "")


def test_the_exit_code_of_an_interrupted_final_evaluation(rollax, lines, cwd):
    done = rollax("train", "--run=FAKE", "--stop-iterations=1", '--config={"interrupted": true}', "--out=run", code=130)
    assert "interrupted" in done.output
    assert len(lines(cwd / "run")) == 1


@pytest.fixture
def no_handler_of_sigterm():
    """Ray, which another test may have started, has a handler."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("no_handler_of_sigterm")
def test_sigterm_in_the_final_evaluation_completes_the_files(rollax, cwd, monkeypatch):
    def evaluate(trainer):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "which would end this process"
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(FakeTrainer, "evaluate", evaluate)
    rollax("train", "--run=FAKE", "--stop-iterations=2", "--out=run", code=143)
    assert (cwd / "run" / "curve.png").exists()
    assert [path.name for path in (cwd / "run" / "best").iterdir()] == ["checkpoint_000002"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_list(rollax):
    out = rollax("list").output
    assert "PPO" in out
    assert "PG" in out
    assert "CartPole" in out
    assert "VDN: Q-learning" in out  # the descriptions are from their own modules
    ids = rollax("list", "--envs=cartpole").output.splitlines()
    assert "CartPole-v1" in ids
    assert "jax:CartPole-v1" in ids
    assert all("cartpole" in name.casefold() for name in ids)


def test_list_without_a_match(rollax):
    done = rollax("list", "--envs=minigrid")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "No environment id contains 'minigrid'. Pass --import=MODULE" in done.stderr
    assert "pettingzoo/classic/connect_four_v3" in rollax("list", "--envs=connect_four").stdout.splitlines()


def test_list_of_libraries_in_jax(rollax, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.setitem(sys.modules, "jaxmarl", ModuleType("jaxmarl"))  # broken: without a registry
    done = rollax("list", "--envs=jax:pgx/minatar")
    assert "jax:pgx/minatar-breakout" in done.stdout.splitlines()
    assert "jax:pgx/2048" not in done.stdout
    assert done.stderr == ""
    done = rollax("list", "--envs=GYMNAX")
    (line,) = done.stderr.splitlines()
    assert "pip install 'gymnax>=1.0'" in line
    assert done.stdout == ""
    (line,) = rollax("list", "--envs=jaxmarl").stderr.splitlines()
    assert "AttributeError" in line


def test_list_shows_ids_registered_by_an_import(rollax, cwd, monkeypatch):
    (cwd / "my_envs.py").write_text("from rollax.env.registry import register_env\nregister_env('corridor-x', dict)\n")
    monkeypatch.syspath_prepend(cwd)
    assert rollax("list", "--import=my_envs", "--envs=corridor").output.split() == ["corridor-x"]


def test_version_and_help(rollax):
    assert rollax("--version").output == f"rollax {package.__version__}\n"
    for command in ("train", "evaluate", "list", "plot"):
        rollax(command, "--help")


def commands(group):
    return [one for child in group.commands.values() for one in ([child] if child.params else commands(child))]


def test_each_option_with_a_value_names_it():
    """Otherwise Typer shows the type, as `<str>`, beside the names of other options."""
    parameters = [one for command in commands(typer.main.get_command(app)) for one in command.params]
    found = [one for one in parameters if not getattr(one, "is_flag", False)]
    assert len(found) > 150
    assert [one.name for one in found if not one.metavar or one.metavar != one.metavar.upper()] == []


@pytest.mark.long
def test_the_command_line_starts_without_jax_and_finds_modules_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("import sys\nassert 'jax' not in sys.modules\nprint('found')\n")
    script = "import sys; from rollax.cli import main; sys.argv = ['rollax', 'list', '--import=beside']; main()"
    # Otherwise Python would search only the script's folder, as for the installed command.
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert output_of("-c", script, cwd=tmp_path).startswith("found")


def test_command_name(cwd, monkeypatch):
    program = cwd / ".venv" / "bin" / "rollax"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert console.command_name() == ".venv/bin/rollax"
    monkeypatch.setenv("PATH", str(program.parent))
    assert console.command_name() == "rollax"
    monkeypatch.setattr(sys, "argv", ["/x/rollax/__main__.py"])
    assert console.command_name().endswith(" -m rollax")
