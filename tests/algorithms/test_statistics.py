"""Results have the same statistics in every iteration, those before the first update included."""

from __future__ import annotations

from typing import Any

import pytest

from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from tests.algorithms.group_envs import TwoStep, paired
from tests.algorithms.replayed import OF_DATA, OF_GROUPS, OF_SEARCH, REPLAYED, SMALL, env_of
from tests.marks import long_except

ON_POLICY: dict[str, Any] = {
    "train_batch_size": 128,
    "rollout_fragment_length": 32,
    "timesteps_per_iteration": 0,
    "model": {"fcnet_hiddens": (8,)},
    "seed": 3,
}
IN_SHORT = {"PPO", "IMPALA", "DQN", "TD3", "QMIX", "APEX", "ES"}  # one of each optimizer and kind of policy
FROM_REPLAY = {found.name for found in REPLAYED} | OF_GROUPS


def two_step(context):
    return paired(TwoStep(context))


@pytest.mark.long
@pytest.mark.parametrize("name", long_except(IN_SHORT, (name for name in ALGORITHMS if name not in OF_DATA)))
def test_the_same_statistics_always(name):
    trainer_class = get_trainer_class(name)
    env: Any = two_step if name in OF_GROUPS else env_of(trainer_class)
    config = dict({**SMALL, "learning_starts": 60} if name in FROM_REPLAY else ON_POLICY)
    if name == "A3C":
        del config["train_batch_size"]
    if name in OF_SEARCH:
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
