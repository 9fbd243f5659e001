"""`rollax train --seeds`: processes that each train one seed."""

import json
import signal
import subprocess
import time

import pytest

from rollax.cli import many_runs, runs_in_processes
from rollax.cli.planned_runs import Outcome
from rollax.errors import ConfigError
from tests.cli.command_line import invoke
from tests.cli.test_end_to_end import SMALL, without_times
from tests.python_process import started

FAKE = ("train", "--import=tests.cli.register_fake", "--run=FAKE", "--env=F", "--no-evaluate", "--out=set")


@pytest.fixture
def set_of(in_processes):
    """Trains FAKE in processes of their own, and returns the seeds in the folder and the output."""

    def train(*options, code=0):
        done = invoke(*FAKE, *options, code=code)
        runs = sorted((in_processes / "set").glob("seed-*"))
        return [json.loads((run / "config.json").read_text())["config"]["seed"] for run in runs], done.output

    return train


def iterations(run):
    return len((run / "result.jsonl").read_text().splitlines())


def test_each_seed_has_a_folder_and_more_may_follow(set_of, cwd):
    seeds, output = set_of("--seeds=2", "--seed=3", "--stop-iterations=2")
    assert seeds == [3, 4]
    # The mean reward of iteration n is 10·n.
    assert "| FAKE | F | 2 | 20 | 20 to 20 | 20 | 20 | 20 |" in output
    written = (cwd / "set" / "seed-3" / "result.jsonl").stat().st_mtime_ns
    seeds, output = set_of("--seeds=3", "--seed=3", "--stop-iterations=2", "--parallel=2")
    assert seeds == [3, 4, 5]
    assert "| FAKE | F | 3 |" in output
    assert (cwd / "set" / "seed-3" / "result.jsonl").stat().st_mtime_ns == written
    _, output = set_of("--seeds=3", "--seed=3", "--set=lr=1", "--stop-iterations=2", code=2)
    assert "The folder has runs of other settings." in output


@pytest.mark.long
def test_a_seed_without_a_checkpoint_begins_again(set_of, cwd):
    (cwd / "set" / "seed-0").mkdir(parents=True)
    (cwd / "set" / "seed-0" / "result.jsonl").write_text('{"training_iteration": 1}\n')
    settings = {"run": "FAKE", "env": "F", "preset": None, "config": {}}
    (cwd / "set" / "seeds.json").write_text(json.dumps(settings, indent=2) + "\n")
    assert set_of("--seeds=1", "--stop-iterations=2")[0] == [0]
    assert iterations(cwd / "set" / "seed-0") == 2


@pytest.mark.short("options1-2-1")
@pytest.mark.parametrize(
    ("options", "code", "number"),
    [
        (["--stop-reward=99", "--must-reach", "--stop-iterations=1"], 3, 2),  # the other seed may reach it
        (["--set=fail_at=1"], 2, 1),  # the other seed would fail too
    ],
)
def test_exit_codes(set_of, options, code, number):
    assert len(set_of("--seeds=2", *options, code=code)[0]) == number
    set_of("--seeds=2", *options, code=code)  # the same command again, also if no run is left


@pytest.mark.parametrize(
    "options",
    [["--seeds=2", "--resume=x"], ["--seeds=2", "--set=seed=1"], ["--parallel=2"], ["--seeds=2", "--continue-for=1"]],
)
def test_options_that_do_not_go_together(set_of, options, cwd):
    set_of("--stop-iterations=1", *options, code=2)
    assert not (cwd / "set").exists()


@pytest.mark.parametrize("seed", ["1.5", "-3", "true"])
def test_a_first_seed_of_a_file_that_is_no_seed_is_refused(set_of, seed, cwd):
    (cwd / "file.yaml").write_text(f"config: {{seed: {seed}}}")
    _, output = set_of("--seeds=2", "--stop-iterations=1", "--file=file.yaml", code=2)
    assert "seed" in output
    assert not (cwd / "set").exists()


def test_a_seed_in_a_part_of_the_config_is_not_the_seed_of_the_run(set_of, monkeypatch):
    monkeypatch.setattr(many_runs, "train_in_processes", lambda *_: Outcome(codes={1}))
    set_of("--seeds=1", "--stop-iterations=1", '--config={"env_config": {"seed": 7}}', code=1)


def test_a_folder_with_other_files_is_refused(set_of, cwd):
    (cwd / "set").mkdir()
    (cwd / "set" / "notes.txt").touch()
    set_of("--seeds=2", "--stop-iterations=1", code=2)
    assert [path.name for path in (cwd / "set").iterdir()] == ["notes.txt"]


@pytest.mark.short("9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_saves_the_running_seeds(tmp_path, number):
    command = ("-m", "rollax", *FAKE, "--seeds=2", "--set=pause=0.2")
    process = started(*command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    run, end = tmp_path / "set" / "seed-0", time.monotonic() + 120
    results = run / "result.jsonl"
    while time.monotonic() < end and not (results.exists() and results.stat().st_size):
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)  # until the seed, which has the same stderr, has ended too
    killed = number == signal.SIGKILL
    assert process.returncode == (-number if killed else 128 + number), errors
    assert len(list((run / "checkpoints").iterdir())) == 1
    assert not (run / "run.lock").exists()
    assert not (tmp_path / "set" / "seed-1").exists()
    assert (tmp_path / "set" / "run.lock").exists() == killed


@pytest.mark.long
def test_a_seed_equals_the_same_seed_alone_and_an_interrupted_one_goes_on(in_processes, lines):
    cwd = in_processes
    options = ["train", "--run=PPO", "--env=CartPole-v1", SMALL]
    invoke(*options, "--seeds=1", "--seed=1", "--stop-iterations=1", "--out=set", "--no-evaluate")
    invoke(*options, "--seeds=2", "--seed=1", "--stop-iterations=2", "--out=set", "--no-evaluate")
    invoke(*options, "--seed=2", "--stop-iterations=2", "--out=alone", "--no-evaluate")
    assert [line["training_iteration"] for line in lines(cwd / "set" / "seed-1")] == [1, 2]
    assert list(map(without_times, lines(cwd / "set" / "seed-2"))) == list(map(without_times, lines(cwd / "alone")))


IN_JAX = ("train", "--run=PPO", "--env=jax:CartPole-v1", SMALL, "--set=model.fcnet_hiddens=[8]")


@pytest.mark.long
def test_seeds_of_an_environment_in_jax_train_in_one_process(cwd, monkeypatch):
    monkeypatch.setattr(runs_in_processes, "_started", None)  # no process begins

    def results(run):
        return [without_times(json.loads(line)) for line in (cwd / run / "result.jsonl").read_text().splitlines()]

    output = invoke(*IN_JAX, "--seeds=3", "--out=set", "--stop-iterations=2").output
    assert "| PPO | jax:CartPole-v1 | 3 |" in output
    invoke(*IN_JAX, "--seed=1", "--out=alone", "--stop-iterations=2")
    assert results("set/seed-1") == results("alone")
    # More iterations continue all of them, and another seed begins.
    invoke(*IN_JAX, "--seeds=4", "--out=set", "--stop-iterations=3")
    assert [len(results(f"set/seed-{seed}")) for seed in range(4)] == [3, 3, 3, 3]


def test_an_error_of_a_seed_is_shown(cwd):
    output = invoke(*IN_JAX, "--seeds=3", "--out=set", "--stop-iterations=2", "--set=lr=1e38", code=2).output
    assert "not finite" in output


@pytest.mark.long
def test_an_error_of_a_trainer_that_cannot_be_made_is_shown(cwd, monkeypatch):
    """The checkpoint of the last seed is damaged."""
    invoke(*IN_JAX, "--seeds=3", "--out=set", "--stop-iterations=1")
    for file in (cwd / "set" / "seed-2" / "checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    assert "seed-2" in invoke(*IN_JAX, "--seeds=3", "--out=set", "--stop-iterations=2", code=2).output


def test_an_error_outside_of_the_runs_is_shown(cwd, monkeypatch):
    """As if the trainer of the last seed did not fit to the first one."""
    monkeypatch.setattr("rollax.many.together.train_together", lambda *_, **__: [None, ConfigError("unlike the first")])
    assert "unlike the first" in invoke(*IN_JAX, "--seeds=2", "--out=set", "--stop-iterations=1", code=2).output


@pytest.mark.long
def test_ctrl_c_saves_all_seeds_of_a_process(cwd):
    process = started("-m", "rollax", *IN_JAX, "--seeds=3", "--out=set", "--stop-timesteps=100000000", cwd=cwd)
    runs = [cwd / "set" / f"seed-{seed}" for seed in range(2)]
    while not all((run / "result.jsonl").exists() for run in runs):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    begun = [run for run in (cwd / "set").glob("seed-*") if (run / "result.jsonl").exists()]
    assert len(begun) >= 2
    assert all(list((run / "checkpoints").iterdir()) for run in begun)


@pytest.mark.long
def test_ctrl_c_ends_the_final_evaluations_of_seeds_in_one_process(cwd):
    endless = "--set=evaluation_num_episodes=1000000000"
    process = started("-m", "rollax", *IN_JAX, "--seeds=2", "--out=set", "--stop-iterations=1", endless, cwd=cwd)
    try:
        while not (saved := list((cwd / "set").glob("seed-*/checkpoints/checkpoint_000001"))):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
    assert all((checkpoint.parent.parent / "result.jsonl").read_text().count("\n") == 1 for checkpoint in saved)
