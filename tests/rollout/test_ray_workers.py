"""Rollout workers as Ray actors: RLlib's classic loop, their processes, and registrations of the driver."""

import faulthandler
import os
import re
import sys
import time
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from rollax import Callbacks, Policy, PPOConfig, PPOTrainer, RolloutWorker, SampleBatch, WorkerError, register_env
from rollax.env.registry import registered_envs
from rollax.processes.failure_rules import FailureRules
from rollax.rollout.remote_workers import RemoteWorkers, ray_workers
from tests.env.kinds import KINDS, REMOTE, Kind
from tests.env.refused import refused
from tests.env.worlds import Clock

CONFIG = {"num_envs_per_worker": 3, "rollout_fragment_length": 10, "seed": 1}
KINDS_IN_A_WORKER = {**KINDS, "remote": REMOTE["remote"]}


class Tally(Policy):
    """Acts by the observation; its weights are the number of rows it has learned from."""

    rows = 0

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return (1000 * obs_batch[:, 2]).astype(np.int64) % 5, [], {}

    def learn_on_batch(self, batch):
        self.rows += batch.count
        return {}

    def get_weights(self):
        return {"rows": self.rows}

    def set_weights(self, weights):
        self.rows = weights["rows"]


def clock_of(process_id: int) -> type[Clock]:
    if os.getpid() != process_id:
        raise ModuleNotFoundError("No module named 'of_the_driver'")
    return Clock


class CreatorOfOneProcess:
    """A creator that other processes cannot unpickle, as if they lacked its module."""

    def __call__(self, context: Any) -> Clock:
        return Clock(dict(context))

    def __reduce__(self) -> tuple[Any, ...]:
        return clock_of, (os.getpid(),)


@pytest.fixture(scope="module")
def actors(small_ray):
    """Two workers; their environment is registered in this process only."""
    register_env("clock of the test", lambda context: Clock(dict(context)))
    register_env("clock of the driver", CreatorOfOneProcess())
    gym.register("rollax-tests/Unimportable-v0", entry_point=lambda: Clock())
    remote = RolloutWorker.as_remote(num_cpus=0)
    made = [
        remote.remote("clock of the test", Tally, config=CONFIG, worker_index=index, num_workers=2) for index in (1, 2)
    ]
    yield made
    for actor in made:
        small_ray.kill(actor)


@pytest.mark.long
def test_the_classic_loop(small_ray, actors):
    local = RolloutWorker("clock of the test", Tally, config={"seed": 0})
    for iteration in range(1, 4):
        samples = SampleBatch.concat_samples(small_ray.get([actor.sample.remote() for actor in actors]))
        assert samples.count == samples.env_steps == 60
        assert len(np.unique(samples["eps_id"] >> 40)) == 2
        local.get_policy().learn_on_batch(samples)
        weights = small_ray.put(local.get_weights())
        for actor in actors:
            actor.set_weights.remote(weights)
        found = small_ray.get([actor.get_weights.remote() for actor in actors])
        assert found == [{"default_policy": {"rows": 60 * iteration}}] * 2
    assert all(small_ray.get([actor.get_metrics.remote() for actor in actors]))


def test_batches_equal_those_of_a_worker_in_this_process(small_ray, actors):
    here = RolloutWorker("clock of the test", Tally, config=CONFIG, worker_index=2, num_workers=2)
    expected = here.sample()["obs"]
    small_ray.get(actors[1].restart_episodes.remote())
    begun = {"episodes_begun": np.zeros(3, np.int64), "next_episode_id": 0, "acting": {"default_policy": {}}}
    small_ray.get(actors[1].set_sampling_state.remote(begun))
    np.testing.assert_array_equal(small_ray.get(actors[1].sample.remote())["obs"], expected)


def test_repr_has_the_worker_index(small_ray, actors):
    found = small_ray.get([actor.apply.remote(repr) for actor in actors])
    assert found == [f"RolloutWorker(worker_index={index})" for index in (1, 2)]


def test_registrations_of_the_driver_exist_in_workers(small_ray, actors):
    def play(worker: Any) -> bool:
        return gym.make("rollax-tests/Unimportable-v0").reset(seed=1)[0].shape == (3,)

    assert small_ray.get(actors[0].apply.remote(play))


def test_registrations_that_need_a_missing_module_are_left_out(small_ray, actors):
    assert "clock of the driver" in registered_envs()
    registered = small_ray.get(actors[0].apply.remote(lambda worker: registered_envs()))
    assert "clock of the test" in registered
    assert "clock of the driver" not in registered


def sampled(kind: Kind) -> dict[str, Any]:
    """Columns of a fragment from a kind of environment."""
    config = {"rollout_fragment_length": 12, "seed": 5}
    worker = RolloutWorker(lambda context: kind.make(2), Tally, config=config, worker_index=1, num_workers=1)
    batch = worker.sample_fragment().batch["default_policy"]
    worker.stop()
    order = np.lexsort([batch["t"], batch["agent_id"].astype(str), batch["eps_id"]])
    return {name: np.asarray(batch[name])[order] for name in ("obs", "actions", "rewards", "t", "terminateds")}


@pytest.mark.long
def test_every_kind_of_environment_runs_in_a_worker(small_ray, actors):
    """One process for all kinds: starting one for each would take a minute."""

    def all_kinds(worker: Any) -> dict[str, Any]:
        return {name: sampled(kind) for name, kind in KINDS_IN_A_WORKER.items()}

    found = small_ray.get(actors[0].apply.remote(all_kinds))
    assert found.keys() == KINDS_IN_A_WORKER.keys()
    for name, kind in {**KINDS, "remote": KINDS["class"]}.items():  # the remote ones are copies of the same class
        np.testing.assert_equal(found[name], sampled(kind), err_msg=name)


class AsyncTally(Tally):
    acts_while_learning = True


class Ends(Clock):
    """An environment whose first step ends its process in the way of the config, or never returns."""

    def __init__(self, config: Any) -> None:
        super().__init__({})
        self._how = config["how"]

    def step(self, action):
        self._simulate()

    def _simulate(self) -> None:
        while self._how.startswith("hangs"):
            time.sleep(0.01)
        if self._how == "crashes":
            faulthandler._sigsegv()  # pyright: ignore[reportAttributeAccessIssue]
        sys.exit(3) if self._how == "exits" else os._exit(3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "what", "got"),
    [
        ("hangs", "A rollout worker has hung.", "no answer for "),
        ("hangs in the background", "A rollout worker has hung.", "no answer for "),
        ("crashes", "The process of a rollout worker is gone.", "Segmentation fault; The actor died"),
        ("exits", "The process of a rollout worker is gone.", "SystemExit(3); The actor died"),
        ("ends at once", "The process of a rollout worker is gone.", "The actor died unexpectedly before finishing"),
    ],
)
def test_the_error_of_a_worker_that_is_lost_says_where_it_was(small_ray, how, what, got):
    timeout_s = 10.0 if how.startswith("hangs") else 600.0
    config = PPOConfig(
        num_workers=1,
        num_cpus_per_worker=0,
        env_config={"how": how},
        sample_timeout_s=timeout_s,
        sample_async="background" in how,
    )
    arguments = {"env_creator": Ends, "policy_cls_or_specs": AsyncTally, "config": config, "num_workers": 1}
    workers = RemoteWorkers(
        ray_workers(config, RolloutWorker, arguments), 1, FailureRules(timeout_s=timeout_s), makes=True
    )
    workers.make_all()
    workers.request(1, "sample_fragment")
    caught = refused(WorkerError, workers.collect)
    workers.stop()
    parts, cause = caught.parts, str(caught.__cause__)
    assert parts["what"] == what
    assert parts["got"].startswith(got)
    if how == "ends at once":  # no process can report that
        assert parts["where"] == "rollout worker 1, sample_fragment()"
        assert "Worker exit type" in cause
        return
    lines = r"_simulate\(\) \(.*, line \d+\), called by step\(\) \(.*, line \d+\)"
    assert re.fullmatch(r"rollout worker 1, sample_fragment\(\), in " + lines, parts["where"])
    assert "in vector_step\n" in cause  # the whole stack is shown above the error


@pytest.mark.long
def test_the_error_of_a_worker_that_lacks_a_module_names_it(small_ray):
    config = PPOConfig(num_workers=1, num_cpus_per_worker=0)
    arguments = {"env_creator": CreatorOfOneProcess(), "policy_cls_or_specs": Tally, "config": config}
    workers = RemoteWorkers(ray_workers(config, RolloutWorker, arguments), 1, FailureRules(), makes=True)
    caught = refused(WorkerError, workers.make_all)
    assert caught.parts["what"] == "A process cannot make its rollout worker."
    assert caught.parts["got"] == "ModuleNotFoundError: No module named 'of_the_driver'"


class ProcessIds(Callbacks):
    """Defined in this process, and called in a worker."""

    def on_episode_end(self, *, worker, base_env, episode):
        episode.custom_metrics["pid"] = float(os.getpid())


@pytest.mark.long
def test_a_process_that_samples_for_a_trainer(small_ray):
    class Unimportable(ProcessIds):
        def on_episode_start(self, *, worker, base_env, episode):
            episode.user_data["began"] = True

        def on_episode_end(self, *, worker, base_env, episode):
            assert episode.user_data["began"]
            super().on_episode_end(worker=worker, base_env=base_env, episode=episode)

    def settings(worker: Any) -> dict[str, Any]:
        names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS")
        return {
            **{name: os.environ.get(name) for name in names},
            "platforms": jax.config.jax_platforms,
            "asynchronous": jax.config.values["jax_cpu_enable_async_dispatch"],
            "devices": [device.platform for device in jax.devices()],
            "pid": os.getpid(),
            "policy": worker.callbacks is not None and worker.policies["first"].made_by.__name__,
        }

    config = {
        "num_workers": 1,
        "num_cpus_per_worker": 0,
        "train_batch_size": 40,
        "sgd_minibatch_size": 40,
        "num_sgd_iter": 1,
        "callbacks": Unimportable,
        "multiagent": {"policies": {"first": None}, "policy_mapping_fn": lambda agent_id: "first"},
        "model": {"fcnet_hiddens": [4]},
    }
    with PPOTrainer(Clock, config) as trainer:
        result = trainer.train()
        (found,) = trainer.workers.foreach_worker(settings)
    threads = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    pid = found.pop("pid")
    assert found == {
        **threads,
        "JAX_PLATFORMS": "cpu",
        "platforms": "cpu",
        "asynchronous": False,
        "devices": ["cpu"],
        "policy": "PPO",
    }
    assert result["custom_metrics"]["pid_mean"] == pid != os.getpid()
