"""Small tasks whose solution is known, learned in seconds."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PGTrainer, PPOTrainer
from rollax.algorithms.ppo import PPOPolicy
from tests.algorithms.envs import Echo, Endless, MaskedCartPole, Shown
from tests.algorithms.tables import Table

ECHO = {
    "num_envs_per_worker": 8,
    "seed": 1,
    "gamma": 0.0,  # an action has no influence on what comes later
    "model": {"fcnet_hiddens": (32,)},
    "evaluation_num_episodes": 8,
}
PPO = {
    **ECHO,
    "train_batch_size": 256,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 8,
    "lr_schedule": [[0, 1e-2], [20 * 256, 1e-3]],
}
BOX = spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))

SPACES = {
    "Discrete": spaces.Discrete(4, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2], start=[0, 5]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": BOX,
    "Tuple": spaces.Tuple([spaces.Discrete(3), BOX]),
    "Dict": spaces.Dict({"b": spaces.MultiBinary([2, 1]), "a": spaces.Discrete(3)}),
}


def greedy_after(trainer, iterations):
    """The mean reward of a step, of 1 at most."""
    with trainer:
        for _ in range(iterations):
            trainer.train()
        return trainer.evaluate()["episode_reward_mean"] / 10


@pytest.mark.parametrize("name", SPACES)
def test_ppo_repeats_what_it_sees(name):
    trainer = PPOTrainer(env=Echo, config={**PPO, "env_config": {"space": SPACES[name]}})
    assert greedy_after(trainer, 20) > 0.93


def test_pg_repeats_what_it_sees():
    config = {**ECHO, "env_config": {"space": SPACES["MultiDiscrete"]}, "train_batch_size": 240, "lr": 2e-2}
    assert greedy_after(PGTrainer(env=Echo, config=config), 40) > 0.93


@pytest.mark.parametrize("image", [False, True])
def test_ppo_learns_from_dicts_and_images(image):
    model = {"fcnet_hiddens": (32,), "conv_filters": [[8, 4, 2]], "conv_dense": 32}
    trainer = PPOTrainer(env=Shown, config={**PPO, "env_config": {"image": image}, "model": model})
    assert greedy_after(trainer, 20) > 0.93


class TestValueOfAnEndlessTask:
    """Reward 1 for ever has the value 1 / (1 - γ) = 10. The task is cut off every 5 steps, which must not matter."""

    CONFIG = {
        "gamma": 0.9,
        "lr": 0.2,
        "grad_clip": None,
        "model": {"custom_model": Table},
        "num_envs_per_worker": 2,
        "train_batch_size": 24,
        "sgd_minibatch_size": 24,
        "num_sgd_iter": 20,
        "lr_schedule": [[0, 0.2], [600, 0.01]],
        "seed": 0,
    }

    def value_after_training(self, trainer_class):
        with trainer_class(env=Endless, config=self.CONFIG) as trainer:
            for _ in range(40):
                trainer.train()
            return trainer.get_policy().compute_values(np.zeros(1, np.int64))[0]

    def test_is_found(self):
        assert self.value_after_training(PPOTrainer) == pytest.approx(10, rel=0.02)

    def test_is_missed_where_truncation_is_taken_for_termination(self):
        assert self.value_after_training(TruncationIsTheEnd) < 5


class TruncationIsTermination(PPOPolicy):
    def postprocess_rows(self, batch, pieces):
        batch["terminateds"] |= batch["truncateds"]
        return super().postprocess_rows(batch, pieces)


class TruncationIsTheEnd(PPOTrainer):
    policy_class = TruncationIsTermination


def test_masked_cartpole_gets_better_and_never_does_what_is_masked():
    config = {
        "num_envs_per_worker": 8,
        "train_batch_size": 256,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 20,
        "lr": 1e-3,
        "gamma": 0.98,
        "lambda": 0.8,
        "seed": 1,
        "evaluation_num_episodes": 10,
    }
    with PPOTrainer(env=MaskedCartPole, config=config) as trainer:
        before = trainer.evaluate()["episode_reward_mean"]
        for _ in range(30):
            trainer.train()
        assert before < 50
        assert trainer.evaluate()["episode_reward_mean"] > 100
