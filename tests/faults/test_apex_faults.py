"""Ape-X with worker and shard processes: processes that are killed, and restoring a checkpoint."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from rollax import ApexDQNTrainer, Trainer, WorkerError
from tests.algorithms.envs import TwoAgents

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("small_ray")]

PROCESSES = {"num_workers": 2, "num_cpus_per_worker": 0, "num_replay_shards": 2, "max_weight_sync_delay": 50}
SAMPLING = {"rollout_fragment_length": 20, "timesteps_per_iteration": 300, "buffer_size": 2000}
LEARNING = {"learning_starts": 100, "train_batch_size": 8, "training_intensity": 0.1, "updates_per_draw": 4}
CONFIG = {**PROCESSES, **SAMPLING, **LEARNING, "model": {"fcnet_hiddens": (16,)}, "seed": 0}


def shards_of(trainer):
    return trainer.optimizer.shards


def process_of(ray, handle):
    return ray.get(handle.__ray_call__.remote(lambda shard: os.getpid()))


def train_until(trainer, condition):
    for _ in range(200):
        result = trainer.train()
        if condition(result):
            return result
    raise AssertionError(result["info"])


def has_learned(result):
    """The learner compiles while the workers sample, so its first update can come after the first results."""
    return result["info"]["replay"]["num_updates"] > 0


def within_bounds(trainer):
    optimizer, config = trainer.optimizer, trainer.config
    due = int((optimizer.steps - config.learning_starts) * config.training_intensity)
    # Pending draws (the queue, the current one, and one not requested yet) and the requested fragments.
    most = (config.learner_queue_size + 2) * config.updates_per_draw + 3 * 2 * 20 * config.training_intensity
    return 0 <= due - optimizer.num_updates <= most


def test_training_and_restoring_a_checkpoint(tmp_path):
    with ApexDQNTrainer("CartPole-v1", {**CONFIG, "store_buffer_in_checkpoints": True}) as trainer:
        for _ in range(3):
            trainer.train()
            assert within_bounds(trainer)
        result = train_until(trainer, has_learned)
        assert np.isfinite(result["info"]["learner"]["default_policy"]["q_loss"])
        assert result["info"]["queue"]["queue_depth_mean"] is not None
        epsilons = trainer.workers.foreach_worker(lambda worker: worker.get_policy().exploration.epsilon(0))
        assert epsilons == pytest.approx([0.4, 0.4**8])
        versions = trainer.workers.foreach_worker(lambda worker: worker.version)
        assert min(versions) > 1
        path = trainer.save(tmp_path)
        updates, kept = trainer.optimizer.num_updates, shards_of(trainer).rows
    with Trainer.from_checkpoint(path) as restored:
        assert restored.optimizer.num_updates == updates
        assert shards_of(restored).rows["default_policy"] >= kept["default_policy"] > 0
        result = restored.train()
        assert result["info"]["replay"]["num_updates"] > updates
        assert within_bounds(restored)


def test_several_policies():
    policies = {"one": (None, None, None, {}), "two": (None, None, None, {"train_batch_size": 4})}
    mapping = {"left": "one", "right": "two"}
    config = {**CONFIG, "multiagent": {"policies": policies, "policy_mapping_fn": mapping.get}}
    with ApexDQNTrainer(TwoAgents, config) as trainer:
        result = train_until(trainer, has_learned)
        for policy_id in policies:
            assert trainer.get_policy(policy_id).learner.num_updates == trainer.optimizer.num_updates > 0
            assert np.isfinite(result["info"]["learner"][policy_id]["q_loss"])


def test_a_killed_worker_is_restarted():
    with ApexDQNTrainer("CartPole-v1", CONFIG) as trainer:
        trainer.train()
        (_, first), (_, second) = trainer.workers.foreach_worker(lambda worker: (worker.worker_index, os.getpid()))
        os.kill(second, signal.SIGKILL)
        result = train_until(trainer, lambda result: result["info"]["workers"]["restarts"] == 1)
        assert "The process of a rollout worker is gone" in result["info"]["workers"]["last_errors"]["2"]
        updates = trainer.optimizer.num_updates
        result = train_until(trainer, lambda result: result["info"]["workers"]["healthy"] == 2)
        assert trainer.optimizer.num_updates > updates
        assert within_bounds(trainer)
        processes = dict(trainer.workers.foreach_worker(lambda worker: (worker.worker_index, os.getpid())))
        assert processes[1] == first
        assert processes[2] != second


def test_a_killed_shard_is_restarted_empty(small_ray):
    with ApexDQNTrainer("CartPole-v1", CONFIG) as trainer:
        trainer.train()
        kept = trainer.train()["info"]["replay"]["rows"]["default_policy"]
        os.kill(process_of(small_ray, shards_of(trainer)._live[2].handle), signal.SIGKILL)
        result = train_until(trainer, lambda result: result["info"]["replay"]["shards"]["restarts"] == 1)
        replay = result["info"]["replay"]
        assert "The process of a replay shard is gone" in replay["shards"]["last_errors"]["2"]
        assert replay["rows"]["default_policy"] < result["timesteps_total"]
        updates = replay["num_updates"]
        result = train_until(trainer, lambda result: result["info"]["replay"]["rows"]["default_policy"] > kept)
        assert result["info"]["replay"]["num_updates"] > updates
        assert result["info"]["replay"]["shards"]["healthy"] == 2
        assert within_bounds(trainer)


def test_without_restarts_the_error_ends_the_run(small_ray):
    config = {**CONFIG, "recreate_failed_workers": False, "num_replay_shards": 1}
    with ApexDQNTrainer("CartPole-v1", config) as trainer:
        trainer.train()
        os.kill(process_of(small_ray, shards_of(trainer)._live[1].handle), signal.SIGKILL)
        with pytest.raises(WorkerError, match="The process of a replay shard is gone") as raised:
            train_until(trainer, lambda result: False)
        assert "(in replay shard 1)" in raised.value.__notes__


def test_stop_ends_all_processes(small_ray):
    trainer = ApexDQNTrainer("CartPole-v1", CONFIG)
    trainer.train()
    processes = [process_of(small_ray, shard.handle) for shard in shards_of(trainer)._live.values()]
    trainer.stop()
    for process in processes:
        for _ in range(500):
            if not Path(f"/proc/{process}").exists():
                break
            time.sleep(0.02)
        else:
            raise AssertionError(process)
