"""Environments are closed after any failure: of another environment, of the trainer, or of its data."""

import gymnasium as gym
import numpy as np
import pytest

from rollax import Callbacks, DQNTrainer, PPOTrainer
from rollax.errors import CheckpointError, ConfigError, DatasetError, EnvError
from tests.algorithms.test_trainer import make
from tests.env.refused import refused


class Closing(gym.Env):
    """Counts how often its copies are made and closed."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)
    made, closed = 0, 0
    fails_at, fails = None, (2, 4)

    def __init__(self, config):
        if Closing.made == self.fails_at:
            raise RuntimeError("one too many")
        Closing.made += 1
        self.number = Closing.made

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}

    def close(self):
        Closing.closed += 1
        if self.number in self.fails:
            raise RuntimeError(f"number {self.number} does not close")


@pytest.fixture
def counted():
    Closing.made = Closing.closed = 0


def test_others_are_closed_if_one_fails_to_close(counted):
    trainer = make(Closing)
    trainer.evaluate(2)
    made = Closing.made
    assert made > 4
    with pytest.raises(EnvError, match=r"RuntimeError in close\(\): number (2|4)(.|\n)*sub-environment"):
        trainer.stop()
    assert Closing.closed == made


def test_environments_are_closed_once(counted, monkeypatch):
    monkeypatch.setattr(Closing, "fails", ())
    with make(Closing) as trainer:
        trainer.evaluate(2)
        trainer.stop()
    assert Closing.closed == Closing.made


def test_environments_are_closed_if_making_a_trainer_fails(counted, tmp_path, monkeypatch):
    path = make("CartPole-v1", env_config={}).save(tmp_path)
    callbacks = type("Broken", (Callbacks,), {"on_step": lambda self: None})
    refused(ConfigError, make, Closing, callbacks=callbacks)
    assert Closing.closed == Closing.made == 4
    refused(CheckpointError, PPOTrainer.from_checkpoint, path, says="different observation_space", env=Closing)
    assert Closing.closed == Closing.made == 8
    monkeypatch.setattr(Closing, "fails_at", 10)
    refused(EnvError, make, Closing, says="one too many")
    assert Closing.closed == Closing.made == 10


def test_environments_are_closed_if_data_cannot_be_read(counted, tmp_path):
    config = {"exploration": "SoftQ", "off_policy_estimation_methods": ("is",), "num_envs_per_worker": 2}
    refused(DatasetError, DQNTrainer, Closing, {**config, "off_policy_estimation_input": str(tmp_path / "missing")})
    assert Closing.closed == Closing.made > 0
