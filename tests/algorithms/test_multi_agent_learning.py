"""Learning of a hierarchy of policies and with two trainers, as in the examples (`make learning`)."""

from typing import Any

import pytest

from examples import hierarchical_maze, two_trainers
from examples.hierarchical_maze import TOP_LEVEL, Maze
from rollax import PPOTrainer

pytestmark = pytest.mark.learning


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
