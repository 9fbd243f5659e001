"""How benchmarks are run: rounds of processes, the time limit, GPUs, and virtual environments from wheels."""

import os
import signal
import subprocess
import time
import zipfile
from unittest.mock import Mock

import psutil
import pytest

from benchmarks import measure as measuring
from benchmarks.measure import Against, Row, measure
from benchmarks.peers import OWN_FOLDER
from benchmarks.processes import AliveSide, Side
from benchmarks.rows import make_rows
from benchmarks.rows.compiled import dqn, ppo, pqn, sac
from benchmarks.sides.rollax_training import greedy_curve
from benchmarks.time_limit import OutOfTimeError, TimeLimit
from benchmarks.without_network import PACKAGES, install, with_less_time
from rollax import PPOTrainer


def serving(value: float) -> tuple[str, ...]:
    """Returns the arguments of a side whose figures are all `value`."""
    return ("-c", f"from benchmarks.protocol import Link; Link().serve(lambda seconds: {value}, origin='test')")


def row_of(*sides: Side, rounds: int = 2) -> Row:
    targets = tuple(Against(side.name) for side in sides[1:])
    return Row("row", "work", "units", "more", sides, targets, rounds=rounds, seconds=0.01)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(measuring, "_SETTLE_S", 0.001)
    monkeypatch.setattr(measuring, "_LISTEN_S", 0.01)


@pytest.fixture
def no_process_left():
    before = set(psutil.Process().children())  # of other tests, such as a Ray that they have left running
    yield
    assert set(psutil.Process().children()) <= before


def test_a_result_has_rounds_cores_and_facts_of_each_side(no_process_left):
    result = measure(row_of(Side("rollax", serving(6.0)), Side("other", serving(2.0))), log=False)
    assert {name: side["rounds"] for name, side in result["sides"].items()} == {"rollax": [6, 6], "other": [2, 2]}
    assert all(side["origin"] == "test" and side["cores"] >= 0 for side in result["sides"].values())
    (target,) = result["targets"]
    assert (target["against"], target["ratio"]) == ("other", 3.0)


def test_the_cores_of_a_side_that_sleeps_are_those_of_its_child(no_process_left):
    script = (
        "import subprocess, sys, time\nfrom benchmarks.protocol import Link\n"
        "subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "def work(seconds):\n    time.sleep(seconds)\n    return 1.0\n"
        "Link().serve(work)\n"
    )
    side = AliveSide(Side("side", ("-c", script)))
    try:
        side.set_up()
        side.round(1.0)
        (cores,) = side.cores
        assert side.values == [1.0]
        assert cores > 0.05
    finally:
        side.kill()


@pytest.mark.long
def test_with_a_limit_rounds_end_early_and_each_side_has_as_many(no_process_left):
    result = measure(
        row_of(Side("rollax", serving(1.0)), Side("other", serving(1.0)), rounds=10**6), log=False, limit=TimeLimit(8.0)
    )
    first, second = (len(side["rounds"]) for side in result["sides"].values())
    assert 1 <= first == second < 10**6


# What the alarm of the limit does, whenever it comes: the process that runs the benchmarks gets its signal.
_REACHES_THE_LIMIT = "os.kill(os.getppid(), signal.SIGALRM); time.sleep(1000)"


def test_a_round_that_the_limit_interrupts_does_not_count(no_process_left):
    script = (
        "import os, signal, time\nfrom benchmarks.protocol import Link\nrounds = iter(range(3))\n"
        f"def work(seconds):\n    if next(rounds) == 2: {_REACHES_THE_LIMIT}\n    return 2.0\n"
        "Link().serve(work)\n"
    )
    row = row_of(Side("rollax", serving(1.0)), Side("other", ("-c", script)), rounds=10)
    result = measure(row, log=False, limit=TimeLimit(3600.0))
    assert {name: side["rounds"] for name, side in result["sides"].items()} == {"rollax": [1, 1], "other": [2, 2]}
    assert [target["ratio"] for target in result["targets"]] == [0.5]


def test_a_side_that_is_not_ready_at_the_limit_is_killed(no_process_left):
    never_ready = Side("rollax", ("-c", f"import os, signal, time; {_REACHES_THE_LIMIT}"))
    with pytest.raises(OutOfTimeError):
        measure(row_of(never_ready), log=False, limit=TimeLimit(3600.0))


def test_with_a_limit_a_library_that_does_not_start_is_left_out(tmp_path, monkeypatch, no_process_left):
    monkeypatch.setenv(OWN_FOLDER, str(tmp_path))  # without its Python
    row = row_of(Side("rollax", serving(1.0)), Side("other", serving(1.0), peer="rejax"))
    result = measure(row, log=False, limit=TimeLimit(60.0))
    assert set(result["sides"]) == {"rollax"}
    assert result["targets"] == []
    with pytest.raises(FileNotFoundError):
        measure(row, log=False)


def test_with_a_limit_a_failure_of_rollax_is_one_of_the_benchmark(no_process_left):
    with pytest.raises(RuntimeError):
        measure(row_of(Side("rollax", ("-c", "raise SystemExit(3)"))), log=False, limit=TimeLimit(60.0))


def test_a_limit_interrupts_only_within_its_block():
    limit = TimeLimit(0.2)
    with pytest.raises(OutOfTimeError), limit.enforced():
        time.sleep(60)
    assert not limit.allows(0.0)
    with pytest.raises(OutOfTimeError), limit.enforced():
        pass
    handler, (before, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    long = TimeLimit(10_000.0)
    with long.enforced():
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 9000
        assert signal.getsignal(signal.SIGALRM) is not handler
    assert signal.getitimer(signal.ITIMER_REAL)[0] <= before
    assert signal.getsignal(signal.SIGALRM) is handler
    assert long.allows(9000.0)
    assert not long.allows(10_001.0)


def test_the_limit_of_a_part_is_not_later_than_that_of_all():
    limit = TimeLimit(10_000.0)
    assert limit.for_part(5000.0).allows(4000.0)
    assert not limit.for_part(5000.0).allows(5001.0)
    assert not limit.for_part(20_000.0).allows(10_001.0)
    assert not TimeLimit().for_part(1.0).exists


def test_without_a_limit_any_time_is_left():
    limit = TimeLimit()
    handler = signal.getsignal(signal.SIGALRM)
    assert not limit.exists
    assert limit.allows(1e9)
    with limit.enforced():
        assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.parametrize(
    ("visible", "gpus", "seen"),
    [(None, 0, ""), ("2,3", 0, ""), (None, 1, "0"), (None, 2, "0,1"), ("2,3", 1, "2"), ("2,3", 2, "2,3")],
)
def test_a_side_sees_as_many_gpus_as_it_uses(visible, gpus, seen, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    serves = "Link().serve(float, seen=os.environ['CUDA_VISIBLE_DEVICES'])"
    side = AliveSide(Side("side", ("-c", f"import os; from benchmarks.protocol import Link; {serves}"), gpus=gpus))
    side.set_up()
    side.kill()
    assert side.facts == {"seen": seen}


TASKS = (ppo(8, 128), ppo(64, 128), ppo(2048, 32, width=256), dqn(), pqn(), sac())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_both_libraries_train_with_the_same_settings(task):
    ours, theirs = task.config, task.settings
    assert task.of_rejax["steps"] == ours["timesteps_per_iteration"]
    assert theirs["num_envs"] == ours["num_envs_per_worker"]
    assert theirs["learning_rate"] == ours["lr"]
    if "num_minibatches" in theirs:  # learns from fresh experience
        rows = theirs["num_envs"] * theirs["num_steps"]
        assert (theirs["num_steps"], rows) == (ours["rollout_fragment_length"], ours["train_batch_size"])
        assert rows == theirs["num_minibatches"] * ours["sgd_minibatch_size"]
        assert theirs["num_epochs"] == ours["num_sgd_iter"]
        assert theirs["max_grad_norm"] == ours["grad_clip"]
    else:
        assert theirs["batch_size"] == ours["train_batch_size"]
        assert theirs["buffer_size"] == ours["buffer_size"]
        assert theirs["fill_buffer"] == ours["learning_starts"]
        assert theirs["num_epochs"] == ours["training_intensity"] * theirs["num_envs"]
    if task.algorithm == "DQN":
        updates_per_step = theirs["num_epochs"] / theirs["num_envs"]
        assert theirs["target_update_freq"] * updates_per_step == ours["target_network_update_freq"]


def test_rejax_runs_beside_rollax_on_the_same_devices():
    rows = [row for row in make_rows().values() if any(side.peer == "rejax" for side in row.sides)]
    assert {row.gpus for row in rows} == {0, 1}
    for row in rows:
        assert {side.gpus for side in row.sides if side.peer == "rejax"} == {row.sides[0].gpus}


def test_an_environment_from_wheels_has_the_packages_of_this_python_too(tmp_path):
    wheels, venv = tmp_path / "wheels", tmp_path / "venv"
    wheels.mkdir()
    info = "numpy_of_wheels-1.0.dist-info"
    with zipfile.ZipFile(wheels / "numpy_of_wheels-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("numpy_of_wheels.py", "ANSWER = 42\n")
        wheel.writestr("cloudpickle/__init__.py", "replaced = True\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: numpy-of-wheels\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    install(wheels, venv)
    script = "import cloudpickle, numpy_of_wheels, psutil; print(numpy_of_wheels.ANSWER, cloudpickle.replaced)"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([venv / "bin" / "python", "-c", script], capture_output=True, text=True, env=clean)
    assert (done.stdout.split(), done.stderr) == (["42", "True"], "")


def test_the_time_of_the_installation_counts():
    options = ["--gpu", "--minutes", "9", "--only", "gpu_dqn"]
    assert with_less_time(options, 60.0) == ["--gpu", "--only", "gpu_dqn", "--minutes", "8.000"]
    assert with_less_time(["--minutes=1"], 90.0) == ["--minutes", "0.000"]
    assert with_less_time(["--gpu"], 60.0) == ["--gpu"]


def test_packages_that_are_carried_have_a_version():
    assert "rollax" in PACKAGES
    peers = {side.peer for row in make_rows().values() for side in row.sides if side.gpus and side.peer}
    assert peers == set(PACKAGES) - {"rollax"}


def test_an_interrupted_curve_continues_exactly_at_its_last_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the folder of a run is relative
    sizes = {"train_batch_size": 16, "sgd_minibatch_size": 8, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [4]}}
    link, evaluate, played = Mock(), PPOTrainer.evaluate, []

    def evaluate_until_interrupted(trainer):
        played.append(trainer)
        if len(played) == 4:  # the second evaluation of the second run
            raise KeyboardInterrupt
        return evaluate(trainer)

    def make(folder):
        greedy_curve(link, "PPO", "CartPole-v1", sizes, budget=32, evaluations=2, episodes=1, seed=3, folder=folder)

    monkeypatch.setattr(PPOTrainer, "evaluate", evaluate_until_interrupted)
    make("whole")
    with pytest.raises(KeyboardInterrupt):
        make("parts")
    make("parts")
    whole, parts = (call.kwargs["answer"]["curve"] for call in link.send.call_args_list)
    assert parts == whole
    assert len(played) == 5
