"""Tasks whose rewards are too rare to learn from without hindsight goals: 20 bits, and a robot's arm."""

from typing import Any

import numpy as np
import pytest

from examples import her
from rollax import Callbacks, DQNTrainer, EvaluationResult, SACTrainer, TD3Trainer
from tests.learning_curves import Run, each_run

pytestmark = pytest.mark.learning


class FlipBits(her.FlipBits):
    """Flips 20 bits, and computes the rewards of other goals."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(axis=-1).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(axis=-1)


BITS: dict[str, Any] = {**her.CONFIG, "hindsight_goals": 4, "evaluation_num_episodes": 100}


def test_dqn_flips_20_bits_with_hindsight_goals(reaches):
    reaches(DQNTrainer, FlipBits, 0.95, 70_400, BITS)


class Success(Callbacks):
    """The share of episodes that end at their goal."""

    def on_episode_end(self, *, worker, base_env, episode):
        episode.custom_metrics["success"] = float(episode.last_infos["agent0"]["is_success"])


def success(evaluation: EvaluationResult) -> float:
    return evaluation["custom_metrics"]["success_mean"]


# rl-baselines3-zoo, hyperparams/her.yml, with one update per step.
FETCH: dict[str, Any] = {
    "callbacks": Success,
    "hindsight_goals": 4,
    "train_batch_size": 256,
    "learning_starts": 1000,
    "random_steps": 1000,
    "gamma": 0.95,
    "lr": 1e-3,
    "model": {"fcnet_hiddens": (64, 64), "fcnet_activation": "relu"},
}
NOISE = {**FETCH, "exploration": "GaussianNoise", "noise_scale": 0.2, "tau": 0.05}
REACH = "gymnasium_robotics:FetchReach-v4"
RUNS = {
    "sac_fetch_reach": Run(SACTrainer, REACH, 1.0, 20_000, FETCH, success),
    "td3_fetch_reach": Run(TD3Trainer, REACH, 1.0, 20_000, NOISE, success),
}


@each_run(RUNS)
def test_reaches_its_score(reaches, run):
    pytest.importorskip("gymnasium_robotics", reason="pip install 'rollax[robotics]'")
    reaches(*run)
