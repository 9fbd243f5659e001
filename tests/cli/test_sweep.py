"""`rollax train --sweep`: a grid of settings, in processes and in one process, with successive halving."""

import json
import shlex
import time

import pytest

from rollax.cli import many_runs, runs_in_processes
from rollax.cli.planned_runs import Outcome
from rollax.core.plain_yaml import read_yaml
from rollax.runs.experiment import read_experiment
from tests.cli.command_line import invoke
from tests.cli.test_end_to_end import without_times
from tests.cli.test_seeds import FAKE, IN_JAX
from tests.python_process import started


@pytest.fixture
def fake(in_processes):
    """Trains FAKE in processes of their own, and returns the output."""
    return lambda *options, code=0: invoke(*FAKE, "--parallel=2", *options, code=code).output


def steps(run):
    return [json.loads(line)["timesteps_total"] for line in (run / "result.jsonl").read_text().splitlines()]


def rows(output):
    """Name of a setting -> its interquartile mean, in the order of the table."""
    cells = [line.split(" | ") for line in output.splitlines() if line.startswith("| slope=")]
    return [(row[0].removeprefix("| "), float(row[3])) for row in cells]


def test_a_grid_has_a_folder_for_each_setting_and_seed(fake, cwd):
    grid = ("--sweep=slope=1..2:2", "--sweep=best_at=2,3", "--seeds=1", "--seed=4")
    # All runs end before the first rung, so none is stopped there.
    output = fake(*grid, "--halving=1000", "--stop-iterations=3")
    assert not list((cwd / "set").rglob("stopped.json"))
    expected = {(slope, best_at, 4) for slope in (1, 2) for best_at in (2, 3)}
    found = {}
    for config in (cwd / "set").glob("*/seed-*/config.json"):
        keys = json.loads(config.read_text())["config"]
        found[keys["slope"], keys["best_at"], keys["seed"]] = config.parent
    assert found.keys() == expected
    assert found[2, 3, 4] == cwd / "set" / "slope=2,best_at=3" / "seed-4"
    # Iteration 3 has the reward slope · 10 · min(3, best_at).
    order = ("slope=2,best_at=3", "slope=2,best_at=2", "slope=1,best_at=3", "slope=1,best_at=2")
    assert rows(output) == list(zip(order, (60, 40, 30, 20), strict=True))
    assert (cwd / "set" / "curves.png").read_bytes().startswith(b"\x89PNG")
    best = read_experiment(cwd / "set" / "best.yaml")
    assert (best.run, best.env, best.stop) == ("FAKE", "F", {"training_iteration": 3})
    assert best.config == {"slope": 2, "best_at": 3}
    fake("--sweep=slope=1..2:2", "--sweep=best_at=2,4", "--seed=4", "--stop-iterations=3", code=2)  # another sweep
    command = shlex.split(output.partition("(train: ")[2].partition(")\n")[0])
    invoke(*command[command.index("train") :], "--out=best run")
    assert steps(cwd / "best run") == [100, 200, 300]


def test_values_are_added_to_a_sweep(fake, cwd):
    fake("--sweep=slope=1,3", "--stop-iterations=2")
    written = {path: path.stat().st_mtime_ns for path in (cwd / "set").rglob("result.jsonl")}
    ranked = rows(fake("--sweep=slope=1,2,3", "--stop-iterations=2"))
    assert [name for name, _ in ranked] == ["slope=3", "slope=2", "slope=1"]
    assert written == {path: path.stat().st_mtime_ns for path in written}
    for others in (
        ("--sweep=slope=1,2",),  # a value less
        ("--sweep=slope=1,2,3,4", "--halving=100"),
        ("--sweep=slope=1,2,3,4", "--set=best_at=3"),
        ("--sweep=slope=1,2,3,4", "--sweep=best_at=3,4"),
    ):
        fake(*others, "--stop-iterations=2", code=2)
    (cwd / "set" / "seeds.json").write_text("{")
    fake("--sweep=slope=1,2,3,4", "--stop-iterations=2", code=2)


def test_halving_in_processes(fake, cwd):
    """Rungs at 100 and 200 steps: of three settings two go on, and of these one."""
    options = ("--sweep=slope=1,3,2", "--halving=100", "--stop-timesteps=300")
    output = invoke(*FAKE[:-2], "--out=set", "--parallel=2", *options).output
    assert [steps(cwd / "set" / f"slope={slope}" / "seed-0")[-1] for slope in (1, 2, 3)] == [100, 200, 300]
    # Greedily 20 · iteration + 1, times the slope; who trained longer ranks before.
    assert rows(output) == [("slope=3", 183), ("slope=2", 82), ("slope=1", 21)]
    why = json.loads((cwd / "set" / "slope=2" / "seed-0" / "stopped.json").read_text())
    assert (why["timesteps_total"], why["score"], why["place"], why["of"], why["kept"]) == (200, 82, 2, 2, 1)
    assert (cwd / "set" / "slope=2" / "seed-0" / "checkpoints" / "checkpoint_000002").is_dir()
    assert not (cwd / "set" / "slope=3" / "seed-0" / "stopped.json").exists()
    assert read_yaml(cwd / "set" / "best.yaml")["config"] == {"slope": 3}
    # The same command has nothing left to train, and decides the same.
    stale = cwd / "set" / "slope=3" / "seed-0" / "stopped.json"  # as after the same sweep with fewer seeds
    stale.touch()
    written = {path: path.stat().st_mtime_ns for path in (cwd / "set").rglob("result.jsonl")}
    assert rows(invoke(*FAKE[:-2], "--out=set", "--parallel=2", *options).output) == rows(output)
    assert written == {path: path.stat().st_mtime_ns for path in written}
    assert not stale.exists()
    # A file that cannot be written is an error with an exit code of its own.
    (cwd / "set" / "best.yaml").unlink()
    (cwd / "set" / "best.yaml").mkdir()
    assert "best.yaml" in invoke(*FAKE[:-2], "--out=set", "--parallel=2", *options, code=2).output


@pytest.mark.long
def test_settings_stop_at_the_first_rung_after_the_end_of_an_episode(fake, cwd):
    options = ("--sweep=slope=1,2,3", "--halving=100", "--stop-timesteps=500")
    # Nobody stops at 100 steps, one setting at 200, and one at 400.
    assert rows(fake(*options)) == [("slope=3", 50 * 3), ("slope=2", 40 * 2), ("slope=1", 20)]
    assert len(list((cwd / "set").rglob("stopped.json"))) == 2


@pytest.mark.long
def test_a_setting_that_diverges_leaves_the_others_alone(fake, cwd):
    options = ("--set=diverges_above=2.5", "--seeds=2", "--stop-timesteps=300", "--parallel=1")
    # Two of three settings diverge, so at the rung the better half has one of these, which does not go on.
    assert rows(invoke(*FAKE, "--sweep=slope=3,1,4", "--halving=200", *options).output) == [("slope=1", 30)]
    assert read_yaml(cwd / "set" / "best.yaml")["config"]["slope"] == 1
    assert not (cwd / "set" / "slope=3" / "seed-1").exists()
    invoke(*FAKE[:-1], "--out=other", "--sweep=slope=3", *options, code=2)


@pytest.mark.long
def test_an_interrupted_sweep_goes_on(fake, cwd):
    """The first call is killed in the second setting, before it has saved anything."""
    options = (*FAKE, "--sweep=slope=1,2", "--set=pause=0.3")
    process = started("-m", "rollax", *options, "--stop-iterations=2", cwd=cwd)
    results = cwd / "set" / "slope=2" / "seed-0" / "result.jsonl"
    while not (results.exists() and results.stat().st_size):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    while (results.parent / "run.lock").exists():  # the run saves a checkpoint and ends
        time.sleep(0.1)
    first = cwd / "set" / "slope=1" / "seed-0" / "result.jsonl"
    written = first.stat().st_mtime_ns
    assert rows(invoke(*options, "--stop-iterations=2").output) == [("slope=2", 40), ("slope=1", 20)]
    assert first.stat().st_mtime_ns == written
    assert steps(results.parent) == [100, 200]


@pytest.mark.long
def test_a_sweep_of_an_environment_in_jax_trains_in_one_process(cwd, lines, monkeypatch):
    """`lr` is an argument of what is compiled, `gamma` is not."""
    monkeypatch.setattr(runs_in_processes, "_started", None)  # no process begins
    grid = ("--sweep=lr=1e-3,1e-2", "--sweep=gamma=0.9,0.99")
    output = invoke(*IN_JAX, *grid, "--halving=64", "--out=set", "--stop-timesteps=128").output
    ends = {run.parent.name: lines(run)[-1]["timesteps_total"] for run in (cwd / "set").glob("*/seed-0")}
    assert sorted(ends.values()) == [64, 64, 128, 128]
    best = read_yaml(cwd / "set" / "best.yaml")["config"]
    assert ends[f"lr={best['lr']},gamma={best['gamma']}"] == 128
    alone = ("--set=lr=0.01", "--set=gamma=0.99", "--seed=0", "--out=alone", "--stop-timesteps=64")
    invoke(*IN_JAX, *alone)
    at_rung = lines(cwd / "set" / "lr=0.01,gamma=0.99" / "seed-0")[0]
    assert without_times(at_rung) == without_times(lines(cwd / "alone")[0])
    assert output.count("\n| lr=") == 4


@pytest.mark.long
def test_settings_that_are_not_compiled_train_in_processes(cwd, monkeypatch):
    """With `sample_async`, nothing is compiled; the other settings train in this process."""
    begun = []

    def train_in_processes(train, options, runs, *_):
        begun.extend(run.label for run in runs)
        return Outcome(codes={1})

    monkeypatch.setattr(many_runs, "train_in_processes", train_in_processes)
    keys = ("--sweep=sample_async=0,1", "--sweep=lr=1e-3,1e-2", "--out=set", "--stop-iterations=1", "--no-evaluate")
    invoke(*IN_JAX, *keys, code=1)
    assert begun == ["sample_async=1,lr=0.001, seed 0", "sample_async=1,lr=0.01, seed 0"]
    here = sorted(run.parent.name for run in (cwd / "set").glob("*/seed-0"))
    assert here == ["sample_async=0,lr=0.001", "sample_async=0,lr=0.01"]


def test_halving_says_that_replay_buffers_are_lost_at_a_rung(cwd, monkeypatch):
    monkeypatch.setattr(many_runs, "train_here", lambda *_: (Outcome(codes={1}), []))
    key = "store_buffer_in_checkpoints"
    options = ("--env=jax:CartPole-v1", "--sweep=lr=1e-3,1e-2", "--halving=100", "--stop-timesteps=200")
    for run, settings, said in (("DQN", [], True), ("DQN", [f"--set={key}=true"], False), ("PPO", [], False)):
        output = invoke("train", f"--run={run}", *options, *settings, f"--out={run}{said}", code=1).output
        assert (key in output) == said


def test_a_setting_that_the_algorithm_refuses_is_refused_before_any_run(cwd):
    """The last setting has a target for the KL divergence, but no penalty."""
    invoke(*IN_JAX, "--set=kl_target=0.02", "--sweep=kl_coeff=0.2,0", "--out=set", "--stop-iterations=1", code=2)
    assert not (cwd / "set").exists()


@pytest.mark.long
def test_a_setting_that_diverges_in_one_process(cwd):
    output = invoke(*IN_JAX, "--sweep=lr=1e-3,1e38", "--out=set", "--stop-iterations=2").output
    assert read_yaml(cwd / "set" / "best.yaml")["config"]["lr"] == 0.001
    assert output.count("\n| lr=") == 1


@pytest.mark.short(every=3)
@pytest.mark.parametrize(
    "options",
    [
        ["--sweep=lr"],
        ["--sweep=slope=a,b"],
        ["--sweep=slope=2..1:3"],
        ["--sweep=slop=1,2"],  # no such key
        ["--sweep=best_at=1.5,2"],  # a whole number
        ["--sweep=framework=1,2"],  # not a number
        ["--sweep=seed=1,2"],
        ["--sweep=slope=1,2", "--set=slope=3"],
        ["--sweep=slope=1,2", "--resume=x"],
        ["--sweep=slope=1,2", "--set=slope=null"],
        ["--sweep=slope=1,2", "--halving=0"],
        ["--sweep=slope=1", "--halving=100"],  # no setting to stop
        ["--sweep=slope=1,2", "--halving=100", "--stop-timesteps=100"],  # nothing after the rung
        ["--halving=100", "--seeds=2"],
    ],
    ids=" ".join,
)
def test_what_is_refused(fake, options, cwd):
    fake("--stop-iterations=1", *options, code=2)
    assert not (cwd / "set").exists()
