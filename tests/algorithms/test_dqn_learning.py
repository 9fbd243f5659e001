"""What DQN must learn of masked and parametric actions, and with several policies (`make learning`)."""

from __future__ import annotations

from typing import Any

import pytest

from examples import multi_agent_cartpole
from examples.multi_agent_cartpole import MultiAgentCartPole
from rollax import DQNTrainer
from tests.algorithms.envs import MaskedCartPole
from tests.algorithms.test_parametric_learning import ParametricCartPole

pytestmark = pytest.mark.learning

# After rl-baselines3-zoo, hyperparams/dqn.yml, with the default model and smaller steps.
CARTPOLE: dict[str, Any] = {
    "rollout_fragment_length": 64,
    "timesteps_per_iteration": 1000,
    "training_intensity": 0.5,
    "train_batch_size": 64,
    "buffer_size": 100_000,
    "lr": 1e-3,
    "target_network_update_freq": 128,
    "final_epsilon": 0.04,
}


@pytest.mark.parametrize("env", [MaskedCartPole, ParametricCartPole], ids=["masked", "parametric"])
def test_dqn_cartpole_with(reaches, env):
    reaches(DQNTrainer, env, 150, 100_000, CARTPOLE)


def test_dqn_multi_agent_cartpole(reaches):
    shared = {name: multi_agent_cartpole.CONFIG[name] for name in ("env_config", "multiagent", "count_steps_by")}
    config = {**CARTPOLE, **shared, "num_envs_per_worker": 4, "rollout_fragment_length": 16}
    reaches(DQNTrainer, MultiAgentCartPole, 150, 500_000, config, weaker_policys_reward)


def weaker_policys_reward(evaluation: dict[str, Any]) -> float:
    return min(evaluation["policy_reward_mean"].values())
