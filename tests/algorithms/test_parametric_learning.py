"""Parametric CartPole: 10 actions, 2 of them valid, in new places at each step; an invalid action raises."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import PGTrainer, PPOTrainer

pytestmark = pytest.mark.learning

SLOTS = 10
EMBEDDINGS = np.random.default_rng(7).uniform(-1, 1, (2, 4)).astype(np.float32)


class ParametricCartPole(gym.Env):
    action_space = spaces.Discrete(SLOTS)
    observation_space = spaces.Dict(
        {
            "cart": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "avail_actions": spaces.Box(-1, 1, (SLOTS, 4), np.float32),
            "action_mask": spaces.MultiBinary(SLOTS),
        }
    )

    def __init__(self, env_config: dict) -> None:
        self.cartpole = gym.make("CartPole-v1")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(self.cartpole.reset(seed=seed)[0]), {}

    def step(self, action):
        assert action in self.places, "an invalid action"
        cart, reward, terminated, truncated, _ = self.cartpole.step(self.places.index(action))
        return self._seen(cart), reward, terminated, truncated, {}

    def _seen(self, cart):
        self.places = self.np_random.choice(SLOTS, 2, replace=False).tolist()
        embeddings, mask = np.zeros((SLOTS, 4), np.float32), np.zeros(SLOTS, np.int8)
        embeddings[self.places], mask[self.places] = EMBEDDINGS, 1
        return {"cart": cart, "avail_actions": embeddings, "action_mask": mask}


PPO = {"train_batch_size": 512, "sgd_minibatch_size": 256, "lr": 1e-3, "gamma": 0.98, "lambda": 0.9}
PG = {"train_batch_size": 1000, "lr": 4e-3}


@pytest.mark.parametrize("model", [{}, {"use_lstm": True}], ids=["mlp", "lstm"])
@pytest.mark.parametrize(("trainer_class", "config"), [(PPOTrainer, PPO), (PGTrainer, PG)], ids=["ppo", "pg"])
def test_parametric_cartpole(reaches, trainer_class, config, model):
    reaches(trainer_class, ParametricCartPole, 150, 100_000, {**config, "model": model, "num_envs_per_worker": 8})
