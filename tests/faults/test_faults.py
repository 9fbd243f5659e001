"""Training runs whose workers die, hang or raise."""

import os
import signal
import threading
import time
import traceback

import pytest

from rollax import ConfigError, EnvError, PPOTrainer, Trainer, WorkerError
from rollax.algorithms.registry import get_trainer_class
from rollax.errors import RemoteTraceback
from tests.faults.worlds import ALGORITHMS, FailsOnOrder, Orders, config_for

pytestmark = pytest.mark.usefixtures("small_ray")

FAULTS = {
    "hang": "WorkerError: A rollout worker has hung.\n  where:    rollout worker 1, sample_fragment(",
    "policy_raises": "KeyError: 'which state?'",
    "policy_nan": "NonFiniteError:",
}


@pytest.fixture
def orders(tmp_path):
    return Orders(tmp_path)


@pytest.fixture
def make(orders):
    """Makes trainers, and stops them."""
    made: list[Trainer] = []

    def make_one(algorithm="PPO", **changes):
        config = config_for(orders, **ALGORITHMS[algorithm], **changes)
        made.append(get_trainer_class(algorithm)(FailsOnOrder, config))
        return made[-1]

    yield make_one
    for trainer in made:
        trainer.stop()


def processes_of(trainer):
    return trainer.workers.foreach_worker(lambda worker: (worker.worker_index, os.getpid()))


def indices_of_made(orders):
    """The worker indices of the environments that were made; the driver makes one, for its spaces."""
    return sorted(line.split()[0] for line in orders.noted("made"))


def train_until(trainer, restarts):
    """Trains until `restarts` restarts were made and all workers are healthy; returns the last result."""
    for _ in range(2000):
        result = trainer.train()
        health = result["info"]["workers"]
        if health["restarts"] >= restarts and health["healthy"] == trainer.config.num_workers:
            return result
        time.sleep(0.05)  # leaves the core to a starting process
    raise AssertionError(health)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name == "PPO" else pytest.mark.long) for name in ALGORITHMS]
)
def test_a_worker_that_is_killed_is_restarted(make, orders, algorithm):
    trainer = make(algorithm)
    assert trainer.train()["info"]["workers"] == {"healthy": 2, "restarts": 0, "last_errors": {}}
    for _ in range(7):
        trainer.train()
    (_, first), (_, second) = processes_of(trainer)
    updates = trainer.get_policy().updates
    os.kill(second, signal.SIGKILL)
    health = train_until(trainer, 1)["info"]["workers"]
    assert [*health["last_errors"]] == ["2"]
    assert health["last_errors"]["2"].startswith("WorkerError: The process of a rollout worker is gone.")
    (index, same), (other_index, new) = processes_of(trainer)
    assert (index, same, other_index) == (1, first, 2)
    assert new not in (first, second)
    # It acts with weights about as recent as the last broadcast before it was killed.
    acting = trainer.workers.foreach_worker(lambda worker: worker.get_policy().updates)
    assert 0 < updates - 6 <= acting[1] <= trainer.get_policy().updates

    assert trainer.train()["episode_len_mean"] == 5
    assert trainer.workers.foreach_worker(lambda worker: worker.restarts) == [0, 1]
    assert indices_of_made(orders) == ["0", "1", "2", "2"]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_worker_that_raises_is_restarted(make, orders, algorithm, caplog):
    trainer = make(algorithm)
    trainer.train()
    (_, first), (_, second) = processes_of(trainer)
    orders.give("raise", 1)
    errors = train_until(trainer, 1)["info"]["workers"]["last_errors"]
    assert [*errors] == ["1"]
    assert errors["1"].startswith("EnvError:")
    assert "a door fell off" in errors["1"]
    (index, third), (_, same) = processes_of(trainer)
    assert (index, same) == (1, second)
    assert third != first
    assert "Rollout worker 1 failed (failure 1 in a row) and is restarted in 0 s." in caplog.text
    assert 'raise ValueError("a door fell off")' in caplog.text  # with the traceback of the other process
    assert trainer.train()["episode_len_mean"] == 5
    assert trainer.workers.foreach_worker(lambda worker: worker.restarts) == [1, 0]
    assert indices_of_made(orders) == ["0", "1", "1", "2"]


@pytest.mark.long
def test_a_worker_that_hangs_and_policies_that_fail(make, orders):
    trainer = make("IMPALA", num_workers=1, sample_timeout_s=30.0)
    trainer.train()
    before = processes_of(trainer)
    for restarts, (order, error) in enumerate(FAULTS.items(), start=1):
        orders.give(order, 1)
        errors = train_until(trainer, restarts)["info"]["workers"]["last_errors"]
        assert errors["1"].startswith(error)
    ((index, process),) = processes_of(trainer)
    assert index == 1
    assert process != before[0][1]


@pytest.mark.long
def test_a_worker_that_always_raises_ends_the_run_with_its_error(make, orders):
    orders.give_always("raise")
    trainer = make(num_workers=1, num_consecutive_worker_failures_tolerance=1)
    with pytest.raises(WorkerError, match="No rollout worker is left") as raised:
        trainer.train()
    error = raised.value.__cause__
    assert isinstance(error, EnvError)
    assert error.__notes__ == ["(in rollout worker 1)"]
    shown = "".join(traceback.format_exception(raised.value))
    assert 'raise ValueError("a door fell off")' in shown
    assert "tests/faults/worlds.py" in shown
    assert len(orders.noted("made")) == 3  # one of the driver, and two attempts
    with pytest.raises(WorkerError, match="No rollout worker is left"):
        trainer.train()


@pytest.mark.long
def test_without_restarts_the_original_error_is_raised(make, orders):
    trainer = make(recreate_failed_workers=False, num_cpus_per_worker=0.5)  # as the error about CPUs advises
    trainer.train()
    before = processes_of(trainer)
    with pytest.raises(ZeroDivisionError) as raised:
        trainer.workers.foreach_worker(lambda worker: 1 / (worker.worker_index - 2))
    assert isinstance(raised.value.__cause__, RemoteTraceback)

    def unpicklable(worker):
        error = ValueError("held")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(WorkerError, match=r"(?s)exception that cannot be sent.*ValueError: held"):
        trainer.workers.foreach_worker(unpicklable)
    assert processes_of(trainer) == before  # these errors were not failures of the workers

    orders.give("raise", 2)
    with pytest.raises(EnvError, match="a door fell off") as raised:
        trainer.train()
    assert raised.value.__notes__ == ["(in rollout worker 2)"]
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert 'raise ValueError("a door fell off")' in str(raised.value.__cause__)
    assert "\x1b" not in str(raised.value.__cause__)


@pytest.mark.long
def test_training_continues_without_failed_workers_until_none_is_left(make, orders):
    trainer = make(recreate_failed_workers=False, ignore_worker_failures=True)
    trainer.train()
    orders.give("die", 1)
    result = trainer.train()
    assert result["info"]["workers"]["healthy"] == 1
    assert result["info"]["workers"]["restarts"] == 0
    assert result["timesteps_this_iter"] == 20
    assert [index for index, _ in processes_of(trainer)] == [2]
    orders.give("die", 2)
    with pytest.raises(WorkerError, match="No rollout worker is left") as raised:
        trainer.train()
    assert "got:      1: WorkerError" in str(raised.value)
    assert "; 2: WorkerError" in str(raised.value)
    assert isinstance(raised.value.__cause__, WorkerError)


def test_an_environment_that_cannot_be_made_raises_the_same_error_in_a_worker(make, orders):
    orders.give("refuse", 0)
    with pytest.raises(Exception, match="no license") as here:
        make(num_workers=0)
    orders.give("refuse", 1)
    with pytest.raises(type(here.value), match="no license") as there:
        make(num_workers=1)
    assert there.value.__notes__ == ["(in rollout worker 1)"]
    assert 'raise LookupError("no license")' in str(there.value.__cause__)


def test_a_function_of_workers_that_cannot_be_pickled(make):
    trainer = make(num_workers=1)
    lock = threading.Lock()
    with pytest.raises(
        ConfigError, match=r"(?s)cannot be sent to another process.*variables lock\n.*cannot pickle '_thread.lock'"
    ):
        trainer.workers.foreach_worker(lambda worker: lock)
    assert trainer.workers.foreach_worker(lambda worker: worker.restarts) == [0]


def test_a_config_that_cannot_be_pickled(make, orders):
    lock = threading.Lock()
    config = config_for(orders, **ALGORITHMS["PPO"])
    with pytest.raises(
        ConfigError, match=r"(?s)cannot be sent to another process.*env_creator.*cannot pickle '_thread.lock'"
    ):
        PPOTrainer(lambda context: (lock, FailsOnOrder(context))[1], config)


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"num_cpus_per_worker": 1.5}, r"CPU: 3\n  expected: at most CPU: 2"),
        ({"num_gpus_per_worker": 0.75}, r"GPU: 1\.5\n  expected: at most GPU: 0"),
        ({"custom_resources_per_worker": {"arm": 1}}, r"arm: 2\n  expected: at most arm: 0"),
    ],
)
def test_more_resources_than_available(make, asked, got):
    with pytest.raises(ConfigError, match=got) as raised:
        make(**asked)
    assert "num_cpus_per_worker=0 or 0.5 shares cores" in str(raised.value)
    assert "connect to a larger cluster with ray_address" in str(raised.value)


@pytest.mark.parametrize(
    "asked",
    [{"num_workers": 2**15 - 1}, {"num_workers": 0, "num_envs_per_worker": 2**20}, {"num_envs_per_worker": 2**15}],
)
def test_more_processes_than_fit_into_the_memory(make, asked):
    """Although none of them reserves a CPU."""
    config = {"num_cpus_per_worker": 0, "remote_worker_envs": "num_envs_per_worker" in asked, **asked}
    with pytest.raises(ConfigError, match="processes needs more memory than this machine has"):
        make(**config)
