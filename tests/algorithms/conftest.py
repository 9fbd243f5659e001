"""How learning runs are measured.

"At least X within N" is the best periodic greedy evaluation (20 episodes) inside N steps, averaged over three seeds;
the last evaluation is printed beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rollax import Trainer

SEEDS, EVALUATIONS = (0, 1, 2), 10


def reward_of(evaluation: dict[str, Any]) -> float:
    """The usual score: the mean reward of an episode."""
    return evaluation["episode_reward_mean"]


@pytest.fixture
def reaches(capsys, request):
    """Trains with each seed and checks the mean of the best evaluations."""

    def check(trainer_class, env, target, budget, config, score=reward_of):
        best, last = [], []
        for seed in SEEDS:
            with trainer_class(env, {"evaluation_num_episodes": 20, **config, "seed": seed}) as trainer:
                scores = [score(evaluation) for evaluation in evaluations(trainer, budget)]
            best.append(max(scores))
            last.append(scores[-1])
            with capsys.disabled():
                print(f"\n{request.node.name} seed {seed}: {' '.join(f'{score:.5g}' for score in scores)}", end="")
        with capsys.disabled():
            shown = ", ".join(f"{score:.5g}" for score in best)
            print(
                f"\n{request.node.name}: best {np.mean(best):.5g} ({shown}), last {np.mean(last):.5g}, target {target}"
            )
        assert np.mean(best) >= target

    return check


def evaluations(trainer: Trainer, budget: int) -> Iterator[dict[str, Any]]:
    """Greedy evaluations after each tenth of the budget. Whole episodes may lead beyond it; that is not shown."""
    steps, one_iteration = 0, max(trainer.config.train_batch_size, trainer.config.timesteps_per_iteration)
    for part in range(1, EVALUATIONS + 1):
        before = steps
        while steps + one_iteration <= part * budget / EVALUATIONS:
            steps = trainer.train()["timesteps_total"]
        if before < steps <= budget:
            yield trainer.evaluate()
