"""`BatchReplayOptimizer`: learning from recorded data, alone, beside fresh experience, and before it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollax import ConfigError, DQNTrainer
from rollax.algorithms.apex import ApexDQNTrainer
from rollax.optimizers.batch_replay import BatchReplayOptimizer
from tests.optimizers.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory

TINY = {
    "model": {"fcnet_hiddens": (4,)},
    "dueling": False,
    "train_batch_size": 4,
    "updates_per_step": 5,
    "timesteps_per_iteration": 0,
    "seed": 0,
}


class Line(gym.Env):
    """Observations and actions of the recorded data; counts what it is asked for."""

    observation_space, action_space = OBSERVATIONS, ACTIONS
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        Line.resets += 1
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Line.steps += 1
        self._t += 1
        return np.full(2, self._t, np.float32), 1.0, self._t == 4, False, {}


@pytest.fixture
def line():
    Line.resets = Line.steps = 0
    return Line


def reader(count=6, steps=5):
    return ListReader([trajectory(number, steps) for number in range(count)])


def weights_of(trainer):
    return trainer.get_weights()["default_policy"]


def same_weights(one, other):
    return all(np.array_equal(value, weights_of(other)[name]) for name, value in weights_of(one).items())


class TestAlone:
    def test_no_environment_is_stepped_and_rows_count_as_steps(self, line):
        with DQNTrainer(line, {**TINY, "input": reader()}) as trainer:
            result = trainer.train()
            assert isinstance(trainer.optimizer, BatchReplayOptimizer)
            assert (line.resets, line.steps) == (0, 0)
            assert result["timesteps_total"] == result["agent_timesteps_total"] == 5 * 4
            assert result["info"]["replay"] == {"rows": {"default_policy": 30}, "num_updates": 5}
            rows = {"default_policy": 30}
            assert result["info"]["data"] == {"rows": rows, "trajectories": 6, "epochs": 20 / 30, "offline": True}
            assert result["episode_reward_mean"] is None
            assert trainer.evaluate(2)["episode_reward_mean"] == 4.0
            assert line.steps == 8

    def test_without_an_environment_the_spaces_are_those_of_the_data(self):
        with DQNTrainer(config={**TINY, "input": reader()}) as trainer:
            assert trainer.get_policy().action_space == ACTIONS
            assert trainer.train()["timesteps_total"] == 20
            with pytest.raises(ConfigError, match="There is no environment"):
                trainer.evaluate()

    def test_apex_learns_from_data_alone(self, line):
        settings = {**TINY, "input": reader(), "buffer_size": 100, "n_step": 1}
        with ApexDQNTrainer(line, settings) as trainer:
            assert trainer.train()["info"]["replay"]["num_updates"] == 5
        with pytest.raises(ConfigError, match="APEX cannot learn from recorded data"):
            ApexDQNTrainer(line, {**settings, "input": {"sampler": 1, "x": 1}})
