"""`output` of the built-in policies: it has the columns for estimates, and does not change training."""

import math

import numpy as np
import pytest

from rollax import DQNTrainer, PPOTrainer, SACTrainer, open_dataset
from tests.offline.data_runs import SMALL

pytestmark = pytest.mark.long

PPO = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "model": {"fcnet_hiddens": (4,)}, "seed": 2}
REPLAY = {**SMALL, "train_batch_size": 8, "learning_starts": 30, "buffer_size": 500}


def trained(cls, env, folder, iterations=2, **config):
    with cls(env=env, config={**config, "output": folder and str(folder)}) as trainer:
        for _ in range(iterations):
            trainer.train()
        return trainer.get_weights()["default_policy"], trainer.optimizer.steps


def test_output_does_not_change_training(tmp_path):
    (weights, steps), (plain, _) = (trained(PPOTrainer, "CartPole-v1", f, **PPO) for f in (tmp_path / "a", None))
    for name, weight in plain.items():
        np.testing.assert_array_equal(weight, weights[name])
    reader = open_dataset(tmp_path / "a")
    assert steps <= len(reader) <= steps + 1
    assert reader.header["env"] == "CartPole-v1"
    for trajectory in reader.trajectories():
        inputs, actions = trajectory.columns["action_dist_inputs"], trajectory.columns["actions"]
        logp = inputs - np.log(np.exp(inputs).sum(axis=1, keepdims=True))
        chosen = logp[np.arange(len(actions)), actions]
        np.testing.assert_allclose(trajectory.columns["action_logp"], chosen, rtol=1e-5)


def test_epsilon_greedy_has_probabilities(tmp_path):
    epsilon = {"initial_epsilon": 0.5, "final_epsilon": 0.5}
    config = {**REPLAY, **epsilon, "rollout_fragment_length": 40}
    (weights, steps), (plain, _) = (trained(DQNTrainer, "CartPole-v1", f, **config) for f in (tmp_path / "a", None))
    for name, weight in plain.items():
        np.testing.assert_array_equal(weight, weights[name])
    columns = [trajectory.columns for trajectory in open_dataset(tmp_path / "a").trajectories()]
    assert sum(len(one["rewards"]) for one in columns) >= steps
    logp = np.concatenate([one["action_logp"] for one in columns])
    # The greedy action has 1 - 0.5 + 0.5 / 2, the other one 0.5 / 2.
    np.testing.assert_allclose(np.unique(logp), np.log([0.25, 0.75]), rtol=1e-6)
    assert all("action_dist_inputs" not in one for one in columns)


def test_random_first_steps_have_the_density_of_random_actions(tmp_path):
    trained(SACTrainer, "Pendulum-v1", tmp_path, 4, **REPLAY, random_steps=20, rollout_fragment_length=10)
    (trajectory,) = open_dataset(tmp_path).trajectories()
    columns = trajectory.columns
    assert trajectory.cut
    np.testing.assert_array_equal(columns["t"], np.arange(len(trajectory)))
    np.testing.assert_allclose(columns["action_logp"][:20], -math.log(2), rtol=1e-6)
    assert len(np.unique(columns["action_logp"])) > len(trajectory) - 20
    np.testing.assert_allclose(columns["env_actions"], 2 * columns["actions"], rtol=1e-6)


def test_each_worker_writes_its_own_files(tmp_path):
    _, steps = trained(PPOTrainer, "CartPole-v1", tmp_path, num_workers=2, **PPO)
    reader = open_dataset(tmp_path)
    assert len({path.name[:9] for path in tmp_path.glob("*.parquet")}) == 2
    assert steps <= len(reader)
    ids = [trajectory.episode_id for trajectory in reader.trajectories()]
    assert len(ids) == len(set(ids))
