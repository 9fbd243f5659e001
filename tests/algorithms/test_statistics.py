"""Results have the same statistics in every iteration, also before the first update."""

from __future__ import annotations

from typing import Any

import pytest

from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from tests.algorithms.group_envs import TwoStep, paired
from tests.algorithms.replayed import DATA_ALGORITHMS, GROUP_ALGORITHMS, REPLAYED, SEARCH_ALGORITHMS, SMALL, env_of
from tests.marks import long_except

ON_POLICY: dict[str, Any] = {
    "train_batch_size": 128,
    "rollout_fragment_length": 32,
    "timesteps_per_iteration": 0,
    "model": {"fcnet_hiddens": (8,)},
    "seed": 3,
}
IN_SHORT = {"PPO", "IMPALA", "DQN", "TD3", "QMIX", "APEX", "ES"}  # one of each optimizer and kind of policy
FROM_REPLAY = {found.name for found in REPLAYED} | GROUP_ALGORITHMS


def two_step(context):
    return paired(TwoStep(context))


@pytest.mark.long
@pytest.mark.parametrize("name", long_except(IN_SHORT, (name for name in ALGORITHMS if name not in DATA_ALGORITHMS)))
def test_statistics_are_the_same_in_every_iteration(name):
    trainer_class = get_trainer_class(name)
    env: Any = two_step if name in GROUP_ALGORITHMS else env_of(trainer_class)
    config = dict({**SMALL, "learning_starts": 60} if name in FROM_REPLAY else ON_POLICY)
    if name == "A3C":
        del config["train_batch_size"]
    if name in SEARCH_ALGORITHMS:
        config = {"num_directions": 2, "model": {"fcnet_hiddens": (8,)}, "seed": 3}
    with trainer_class(env, config) as trainer:
        (policy_id,) = trainer.optimizer.stats
        before = dict(trainer.optimizer.stats[policy_id])
        found = [trainer.train()["info"]["learner"][policy_id] for _ in range(3)]
    assert before
    assert set(before.values()) == {None}
    assert [set(statistics) for statistics in found] == [set(before)] * 3
    if name in FROM_REPLAY:
        assert found[0] == before
    assert any(value is not None for value in found[-1].values())
