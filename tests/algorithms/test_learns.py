"""Small tasks with known solutions, learned in seconds."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import IMPALA, APPOTrainer, IMPALATrainer, PPOTrainer, SACTrainer
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
STREAM = {**ECHO, "rollout_fragment_length": 8, "train_batch_size": 64, "timesteps_per_iteration": 0, "lr": 1e-2}
VALUES = {
    **ECHO,
    "rollout_fragment_length": 4,
    "lr": 1e-2,
    "learning_starts": 64,
    "training_intensity": 0.5,
    "timesteps_per_iteration": 1200,
}
CONTINUOUS = {
    **VALUES,
    "lr": 3e-3,
    "learning_starts": 256,
    "random_steps": 1000,
    "train_batch_size": 64,
    "timesteps_per_iteration": 3000,
    "buffer_size": 5000,
    "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
}
APEX = {"buffer_size": 10_000, "worker_epsilon_alpha": 0.0, "timesteps_per_iteration": 1500}
BOX = spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))
UNIT = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))
FOUR = spaces.Discrete(4, start=-1)
SEVERAL = spaces.MultiDiscrete([3, 2], start=[0, 5])

# Case -> algorithm, space of observations and actions, config, iterations.
CASES: dict[str, tuple[str, spaces.Space, dict[str, Any], int]] = {
    "PPO, Discrete": ("PPO", FOUR, PPO_CONFIG, 20),
    "PPO, MultiDiscrete": ("PPO", SEVERAL, PPO_CONFIG, 20),
    "PPO, MultiBinary": ("PPO", spaces.MultiBinary(3), PPO_CONFIG, 20),
    "PPO, Box": ("PPO", BOX, PPO_CONFIG, 20),
    "PPO, Tuple": ("PPO", spaces.Tuple([spaces.Discrete(3), BOX]), PPO_CONFIG, 20),
    "PPO, Dict": ("PPO", spaces.Dict({"b": spaces.MultiBinary([2, 1]), "a": spaces.Discrete(3)}), PPO_CONFIG, 20),
    "PG": ("PG", SEVERAL, {**ECHO, "train_batch_size": 240, "lr": 2e-2}, 40),
    "A2C": ("A2C", SEVERAL, STREAM, 40),
    "A3C": ("A3C", SEVERAL, {name: value for name, value in STREAM.items() if name != "train_batch_size"}, 40),
    "IMPALA": ("IMPALA", SEVERAL, STREAM, 40),
    "APPO": ("APPO", SEVERAL, {**STREAM, "num_sgd_iter": 4}, 15),
    "APPO, without V-trace": ("APPO", SEVERAL, {**STREAM, "num_sgd_iter": 4, "vtrace": False}, 15),
    "PQN": ("PQN", FOUR, {**PPO_CONFIG, "epsilon_timesteps": 2000}, 20),
    "DQN": ("DQN", FOUR, {**VALUES, "epsilon_timesteps": 500}, 1),
    "DQN, atoms": ("DQN", FOUR, {**VALUES, "epsilon_timesteps": 500, "num_atoms": 21, "v_min": 0.0, "v_max": 1.0}, 1),
    "DQN, noisy": ("DQN", FOUR, {**VALUES, "noisy": True}, 1),
    "DQN, parameter noise": (
        "DQN",
        spaces.Discrete(4),
        {
            **VALUES,
            "rollout_fragment_length": 10,
            "timesteps_per_iteration": 1500,
            "exploration": "ParameterNoise",
            "epsilon_schedule": [(0, 0.3)],
        },
        1,
    ),
    "APEX": ("APEX", FOUR, {**VALUES, **APEX, "train_batch_size": 32}, 1),
    "APEX_DDPG": (
        "APEX_DDPG",
        spaces.Box(-1, 1, (1,), np.float32),
        {
            **CONTINUOUS,
            **APEX,
            "tau": 0.05,
            "random_steps": 200,
            "learning_starts": 200,
            "updates_per_draw": 4,
            "model": {"fcnet_hiddens": (32,), "fcnet_activation": "relu"},
        },
        1,
    ),
    "DDPG": ("DDPG", UNIT, CONTINUOUS, 1),
    "TD3": ("TD3", UNIT, CONTINUOUS, 1),
    "SAC": ("SAC", UNIT, CONTINUOUS, 1),
    "SAC, Discrete": ("SAC", FOUR, {**CONTINUOUS, "target_entropy": 0.2}, 1),
}
IN_SHORT = {"IMPALA", "DQN", "SAC"}


def greedy_after(trainer, iterations):
    """The mean reward of a step; at most 1."""
    with trainer:
        for _ in range(iterations):
            trainer.train()
        return trainer.evaluate()["episode_reward_mean"] / 10


@pytest.mark.short("DQN")
@pytest.mark.parametrize("case", long_except(IN_SHORT, CASES))
def test_learns_to_repeat_observations(case):
    name, space, config, iterations = case
    trainer = get_trainer_class(name)(Echo, {**config, "env_config": {"space": space}})
    assert greedy_after(trainer, iterations) > (0.9 if name == "APEX_DDPG" else 0.93)


class Level(gym.Env):
    """The right action in [-2, 4] is the height of the bright part of an image. The Dict's other entry is noise."""

    action_space = spaces.Box(-2, 4, (1, 1), np.float32)
    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 1), np.uint8), "noise": spaces.Tuple([spaces.Discrete(3)])}
    )

    def __init__(self, env_config):
        self.steps = 0

    def _next(self):
        height = int(self.np_random.integers(9))
        self.right = -2 + 6 * height / 8
        image = np.full((8, 8, 1), 50, np.uint8)
        image[:height] = 200
        return {"image": image, "noise": (int(self.np_random.integers(3)),)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = 1 - abs(float(action[0, 0]) - self.right) / 6
        self.steps += 1
        return self._next(), reward, False, self.steps == 10, {}


@pytest.mark.long
def test_sac_learns_from_images():
    model = {"fcnet_hiddens": (64, 64), "conv_filters": ((8, 4, 2),), "conv_dense": 32}
    assert greedy_after(SACTrainer(Level, {**CONTINUOUS, "model": model}), 1) > 0.93


@pytest.mark.long
@pytest.mark.parametrize("image", [False, True])
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

    @pytest.mark.long
    def test_is_learned(self):
        assert self.value_after_training(PPOTrainer, self.CONFIG) == pytest.approx(10, rel=0.02)

    @pytest.mark.long
    @pytest.mark.parametrize("trainer_class", [IMPALATrainer, APPOTrainer])
    def test_is_learned_from_bootstrap_rows(self, trainer_class):
        assert self.value_after_training(trainer_class, self.IMPALA) == pytest.approx(10, rel=0.02)

    @pytest.mark.long
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
