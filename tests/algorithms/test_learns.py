"""Small tasks with known solutions, learned in seconds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from rollax import IMPALA, APPOTrainer, IMPALATrainer, PGTrainer, PPOTrainer
from rollax.algorithms.ppo import PPO
from rollax.algorithms.registry import get_trainer_class
from tests.algorithms.envs import Echo, Endless, MaskedCartPole, Shown
from tests.algorithms.tables import Table
from tests.marks import long_except

ECHO = {
    "num_envs_per_worker": 8,
    "seed": 1,
    "gamma": 0.0,  # an action has no influence on what comes later
    "model": {"fcnet_hiddens": (32,)},
    "evaluation_num_episodes": 8,
}
PPO_CONFIG = {
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
    """The mean reward of a step; at most 1."""
    with trainer:
        for _ in range(iterations):
            trainer.train()
        return trainer.evaluate()["episode_reward_mean"] / 10


@pytest.mark.parametrize("space", long_except({"Tuple"}, SPACES))  # of a Discrete and a Box
def test_ppo_learns_to_repeat_observations(space):
    trainer = PPOTrainer(env=Echo, config={**PPO_CONFIG, "env_config": {"space": space}})
    assert greedy_after(trainer, 20) > 0.93


def test_pg_learns_to_repeat_observations():
    config = {**ECHO, "env_config": {"space": SPACES["MultiDiscrete"]}, "train_batch_size": 240, "lr": 2e-2}
    assert greedy_after(PGTrainer(env=Echo, config=config), 40) > 0.93


@pytest.mark.parametrize(
    ("name", "options", "iterations"),
    [
        ("A2C", {"train_batch_size": 64}, 40),
        pytest.param("A3C", {"timesteps_per_iteration": 0}, 40, marks=pytest.mark.long),
        ("IMPALA", {"train_batch_size": 64, "timesteps_per_iteration": 0}, 40),
        ("APPO", {"train_batch_size": 64, "timesteps_per_iteration": 0, "num_sgd_iter": 4}, 15),
        pytest.param(
            "APPO",
            {"train_batch_size": 64, "timesteps_per_iteration": 0, "num_sgd_iter": 4, "vtrace": False},
            15,
            marks=pytest.mark.long,
        ),
    ],
    ids=["A2C", "A3C", "IMPALA", "APPO", "APPO without V-trace"],
)
def test_actor_critics_learn_to_repeat_observations(name, options, iterations):
    space = {"space": SPACES["MultiDiscrete"]}
    config = {**ECHO, "env_config": space, "rollout_fragment_length": 8, "lr": 1e-2, **options}
    assert greedy_after(get_trainer_class(name)(env=Echo, config=config), iterations) > 0.93


@pytest.mark.parametrize("image", [pytest.param(False, marks=pytest.mark.long), True])
def test_ppo_learns_from_dicts_and_images(image):
    convolutions = {"conv_filters": [[8, 4, 2]], "conv_dense": 32} if image else {}
    model = {"fcnet_hiddens": (32,), **convolutions}
    # At the step size of the other tests the units of the convolutions die with a third of all seeds.
    slower = {"lr_schedule": [[0, 3e-3], [20 * 256, 3e-4]]}
    trainer = PPOTrainer(env=Shown, config={**PPO_CONFIG, **slower, "env_config": {"image": image}, "model": model})
    assert greedy_after(trainer, 20) > 0.93


class TestValueOfAnEndlessTask:
    """Reward 1 at each step has the value 1 / (1 - γ) = 10. Truncation after 5 steps must not change it."""

    CONFIG: ClassVar[dict[str, Any]] = {
        "gamma": 0.9,
        "grad_clip": None,
        "model": {"custom_model": Table},
        "num_envs_per_worker": 2,
        "train_batch_size": 24,
        "sgd_minibatch_size": 24,
        "num_sgd_iter": 20,
        "lr_schedule": [[0, 0.2], [600, 0.01]],
        "seed": 0,
    }

    # Bootstrap values are those of the current learner, so that values converge over a few iterations.
    IMPALA: ClassVar[dict[str, Any]] = {
        **CONFIG,
        "num_sgd_iter": 10,
        "rollout_fragment_length": 4,
        "timesteps_per_iteration": 0,
    }
    del IMPALA["sgd_minibatch_size"]

    def value_after_training(self, trainer_class, config, iterations=40):
        with trainer_class(env=Endless, config=config) as trainer:
            for _ in range(iterations):
                trainer.train()
            return trainer.get_policy().compute_values(np.zeros(1, np.int64))[0]

    def test_is_learned(self):
        assert self.value_after_training(PPOTrainer, self.CONFIG) == pytest.approx(10, rel=0.02)

    @pytest.mark.parametrize("trainer_class", [IMPALATrainer, pytest.param(APPOTrainer, marks=pytest.mark.long)])
    def test_is_learned_from_bootstrap_rows(self, trainer_class):
        assert self.value_after_training(trainer_class, self.IMPALA) == pytest.approx(10, rel=0.02)

    def test_is_missed_if_truncation_counts_as_termination(self):
        assert self.value_after_training(TruncatingPPO, self.CONFIG) < 5
        assert self.value_after_training(TruncatingIMPALA, self.IMPALA) < 5


class TruncationIsTermination:
    def postprocess(self, fragment, values):
        fragment["terminateds"] |= fragment["truncateds"]
        return super().postprocess(fragment, values)  # type: ignore[misc]


class MistakenPPO(TruncationIsTermination, PPO):
    pass


class TruncatingPPO(PPOTrainer):
    policy_class = MistakenPPO


class MistakenIMPALA(TruncationIsTermination, IMPALA):
    pass


class TruncatingIMPALA(IMPALATrainer):
    policy_class = MistakenIMPALA


@pytest.mark.long
def test_masked_cartpole_improves_without_masked_actions():
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
