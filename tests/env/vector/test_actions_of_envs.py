"""Sub-environments receive their own copies of actions: they can keep them and write into them."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rollax import PPOTrainer, RolloutWorker
from rollax.policy.policy import Policy

BOX = spaces.Box(-1, 1, (1,), np.float32)


class Smooth(gym.Env):
    """Keeps the last action, and rewards the distance to it."""

    observation_space = action_space = BOX

    def __init__(self, length=4):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.last, self.t = None, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = 0.0 if self.last is None else float(abs(action - self.last)[0])
        self.last, self.t = action, self.t + 1
        return np.zeros(1, np.float32), reward, self.t == self.length, False, {}


class Flip(Policy):
    """Alternates between 1 and -1."""

    sign = 1.0

    def compute_actions(self, obs_batch):
        self.sign = -self.sign
        return np.full((len(obs_batch), 1), self.sign, np.float32), [], {}


def test_actions_of_two_policies_can_be_kept():
    worker = RolloutWorker(
        Smooth,
        {"a": Flip, "b": Flip},
        policy_mapping_fn=lambda agent, episode: "ab"[episode.env_index % 2],
        config={"num_envs_per_worker": 4},
    )
    assert [episode.reward for episode in worker.evaluate(8)] == [6.0] * 8
    worker.stop()


def test_actions_of_a_vector_environment_can_be_kept():
    vector = SyncVectorEnv([lambda length=length: Smooth(length) for length in (3, 4, 5)])
    worker = RolloutWorker(lambda _: vector, Flip, config={"normalize_actions": False})
    for episode in worker.evaluate(9):
        assert episode.reward == 2.0 * (episode.length - 1)
    worker.stop()


class Writes(gym.Env):
    """Writes into its action."""

    observation_space = BOX

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        action[:] = 0
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.mark.long
@pytest.mark.parametrize(
    "space", [spaces.MultiBinary(3), spaces.MultiDiscrete([3, 3]), spaces.Box(-1, 1, (2,))], ids=str
)
def test_actions_can_be_written_into(space):
    config = {"train_batch_size": 8, "sgd_minibatch_size": 8, "num_sgd_iter": 1}
    with PPOTrainer(lambda _: Writes(space), config) as trainer:
        assert trainer.train()["episodes_this_iter"] == 8
