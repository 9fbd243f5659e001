"""Algorithms with a replay buffer: greedy evaluation with every exploration, and restored targets and schedules."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from rollax import DQNTrainer, RainbowTrainer, Trainer
from tests.algorithms.replayed import SMALL, each_algorithm, env_of


class Watched(gym.Wrapper):
    """Records observations and actions, if the config key `watched` is set."""

    seen: ClassVar[list] = []

    def __init__(self, context):
        super().__init__(gym.make(context["id"]))
        self.watched = context.get("watched", False)

    def reset(self, **kwargs):
        self.last, info = self.env.reset(**kwargs)
        return self.last, info

    def step(self, action):
        if self.watched:
            self.seen.append((np.array(self.last), np.array(action)))
        self.last, *outcome = self.env.step(action)
        return self.last, *outcome


@pytest.fixture
def made():
    """Makes trainers that record evaluation, or training if `phase` is "training"."""

    def make(trainer_class, phase="evaluation", **changes):
        base = {"id": env_of(trainer_class)}
        watched = {"env_config": {**base, "watched": True}}
        config = {**SMALL, "env_config": base, "evaluation_num_episodes": 2, **changes}
        config |= {"evaluation_config": watched} if phase == "evaluation" else watched
        return trainer_class(Watched, config)

    Watched.seen.clear()
    yield make
    Watched.seen.clear()


def is_greedy(trainer: Trainer) -> np.ndarray:
    """[steps] whether each action is the greedy action of the policy."""
    best = [np.array(trainer.compute_single_action(obs)) for obs, _ in Watched.seen]
    assert best
    pairs = zip(Watched.seen, best, strict=True)
    return np.array([np.allclose(done, action, atol=1e-5) for (_, done), action in pairs])


def scale_noise(trainer: Trainer, scale: float) -> None:
    """Multiplies the noise scales of noisy layers."""
    weights = trainer.get_weights()["default_policy"]
    scaled = {n: scale * value if "sigma" in n else value for n, value in weights.items()}
    trainer.set_weights({"default_policy": scaled})


@pytest.mark.long
@each_algorithm
def test_evaluation_is_greedy(made, trainer_class):
    with made(trainer_class) as trainer:
        trainer.train()
        trainer.evaluate()
        assert is_greedy(trainer).all()


@pytest.mark.parametrize(
    ("trainer_class", "options"),
    [
        (DQNTrainer, {}),
        (DQNTrainer, {"exploration": "SoftQ"}),
        pytest.param(DQNTrainer, {"noisy": True}, marks=pytest.mark.long),
        (RainbowTrainer, {}),
    ],
    ids=["epsilon", "soft", "noisy", "rainbow"],
)
class TestStrongExploration:
    @pytest.mark.long
    def test_noise_is_used_in_training_only(self, made, trainer_class, options):
        with made(trainer_class, "training", lr=0.0, **options) as trainer:
            scale_noise(trainer, 1e3)
            trainer.train()
            assert not is_greedy(trainer).all()
        Watched.seen.clear()
        with made(trainer_class, **options) as trainer:
            trainer.train()
            scale_noise(trainer, 1e3)
            trainer.evaluate()
            assert is_greedy(trainer).all()
            Watched.seen.clear()
            trainer.evaluate()
            scale_noise(trainer, 0.0)  # greedy actions use the means
            assert is_greedy(trainer).all()
