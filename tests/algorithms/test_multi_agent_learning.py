"""Learning of several policies with the environments and settings of the examples (`make learning`)."""

from __future__ import annotations

from typing import Any

import pytest

from examples import hierarchical_maze, multi_agent_cartpole, rock_paper_scissors, tic_tac_toe, two_trainers
from examples.hierarchical_maze import TOP_LEVEL, Maze
from examples.multi_agent_cartpole import MultiAgentCartPole
from examples.rock_paper_scissors import RockPaperScissors
from rollax import APPOTrainer, IMPALATrainer, PPOTrainer, SACTrainer
from tests.algorithms.envs import MultiAgentPendulum
from tests.algorithms.test_learning_runs import PENDULUM

pytestmark = pytest.mark.learning


def test_ppo_multi_agent_cartpole(reaches):
    reaches(PPOTrainer, MultiAgentCartPole, 800, 100_000, multi_agent_cartpole.CONFIG)


@pytest.mark.parametrize(
    ("trainer_class", "budget", "options"),
    [(IMPALATrainer, 600_000, {}), (APPOTrainer, 400_000, {"num_sgd_iter": 6})],
    ids=["impala", "appo"],
)
def test_multi_agent_cartpole_from_a_stream_of_samples(reaches, trainer_class, budget, options):
    common = ("env_config", "multiagent", "num_envs_per_worker", "count_steps_by")
    config = {name: multi_agent_cartpole.CONFIG[name] for name in common}
    config |= {"train_batch_size": 800, "timesteps_per_iteration": 8000, **options}
    reaches(trainer_class, MultiAgentCartPole, 300, budget, config, weaker_policys_reward)


def test_ppo_multi_agent_pendulum(reaches):
    # As for one pendulum; the returns of both agents are summed. A step is one of the environment.
    policies = {"even": None, "odd": None}
    config = {**PENDULUM, "multiagent": {"policies": policies, "policy_mapping_fn": multi_agent_cartpole.even_or_odd}}
    reaches(PPOTrainer, MultiAgentPendulum, -600, 150_000, config)


def test_sac_multi_agent_pendulum(reaches):
    policies = {"even": None, "odd": None}
    config = {"lr": 1e-3, "learning_starts": 500, "random_steps": 500}
    config["multiagent"] = {"policies": policies, "policy_mapping_fn": multi_agent_cartpole.even_or_odd}
    reaches(SACTrainer, MultiAgentPendulum, -400, 10_000, config)


def weaker_policys_reward(evaluation: dict[str, Any]) -> float:
    return min(evaluation["policy_reward_mean"].values())


class TestRockPaperScissors:
    # Most of the reward depends on the random opponent: with 20 episodes this alone would change the mean by 0.7.
    config = {**rock_paper_scissors.CONFIG, "evaluation_num_episodes": 200}

    def test_without_a_memory(self, reaches):
        config = {**self.config, "multiagent": rock_paper_scissors.against_either()}
        reaches(PPOTrainer, RockPaperScissors, 5, 100_000, config, learners_reward)

    def test_with_a_memory(self, reaches):
        multiagent = rock_paper_scissors.against_either()
        config = {**self.config, "multiagent": multiagent, "model": rock_paper_scissors.LSTM}
        reaches(PPOTrainer, RockPaperScissors, 7, 60_000, config, learners_reward)


def learners_reward(evaluation: dict[str, Any]) -> float:
    return evaluation["policy_reward_mean"]["learner"]


def test_ppo_tic_tac_toe_by_self_play(reaches):
    config = {**tic_tac_toe.SELF_PLAY, "evaluation_num_episodes": 100}
    reaches(PPOTrainer, tic_tac_toe.make_game, 0.9, 300_000, config, tic_tac_toe.score)


class TestHierarchicalMaze:
    def test_three_policies(self, reaches):
        # Steps of walkers and choices of the top level are counted together.
        config = hierarchical_maze.config(evaluation_num_episodes=20)
        reaches(PPOTrainer, Maze, 0.8, 150_000, config, goals_reached)

    def test_a_top_level_alone_gets_nowhere_with_walkers_that_do_not_learn(self):
        with PPOTrainer(Maze, hierarchical_maze.config([TOP_LEVEL])) as trainer:
            for _ in range(10):
                trainer.train()
            assert goals_reached(trainer.evaluate()) < 0.4


def goals_reached(evaluation: dict[str, Any]) -> float:
    return evaluation["policy_reward_mean"][TOP_LEVEL]


def test_two_trainers():
    assert two_trainers.main() >= 200
