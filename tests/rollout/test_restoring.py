"""Real workers: the same numbers as without workers, and a checkpoint that continues in a fresh process."""

import hashlib

import numpy as np
import pytest

from rollax import PPOTrainer
from tests.python_process import output_of

CONFIG = {
    "num_cpus_per_worker": 0,
    "num_envs_per_worker": 2,
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": [8]},
    "seed": 4,
}


def digest(trainer: PPOTrainer) -> str:
    """The hash of all bits of weights and filter statistics."""
    parts = {**trainer.get_weights()["default_policy"], **trainer.worker.get_filters()["default_policy"]}
    found = hashlib.sha256()
    for name, value in sorted(parts.items()):
        found.update(name.encode() + np.asarray(value).tobytes())
    return found.hexdigest()


@pytest.mark.long
def test_one_worker_equals_none(small_ray):
    found = set()
    for num_workers in (0, 1):
        with PPOTrainer("CartPole-v1", {**CONFIG, "num_workers": num_workers}) as trainer:
            results = [trainer.train() for _ in range(3)]
            found.add((digest(trainer), tuple(result["episode_reward_mean"] for result in results)))
    assert len(found) == 1


@pytest.mark.long
def test_a_checkpoint_of_two_workers_continues_in_a_fresh_process(small_ray, tmp_path):
    with PPOTrainer("CartPole-v1", {**CONFIG, "num_workers": 2}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        trainer.train()
        expected = digest(trainer)
    program = f"""
from rollax import PPOTrainer
from tests.rollout.test_restoring import digest
with PPOTrainer.from_checkpoint({str(path)!r}) as trainer:
    trainer.train()
    print("digest", digest(trainer))
"""
    assert f"digest {expected}" in output_of("-W", "ignore", "-c", program).splitlines()
