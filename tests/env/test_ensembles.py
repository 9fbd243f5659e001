"""One config, several dynamics: each copy has its own, by its vector index."""

from __future__ import annotations

import numpy as np
import pytest

from rollax import EnvContext, RolloutWorker
from tests.env.always_zero import AlwaysZero
from tests.env.worlds import AsAgents, Counting

LENGTHS = (2, 5)


class Member(Counting):
    """Its index in the ensemble sets the length of its episodes."""

    def __init__(self, context: EnvContext) -> None:
        self.index = context.vector_index
        self.length, self.paid = context["lengths"][self.index], float(self.index)

    def obs(self):
        return np.array([self.index, self.count, 0], np.float32)


class MemberOfAgents(AsAgents):
    """The same with an agent "a"."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(Member(context), "a")


@pytest.mark.long
@pytest.mark.parametrize(("cls", "remote"), [(Member, False), (MemberOfAgents, False), (Member, True)])
def test_each_copy_has_its_own_dynamics(cls, remote, request):
    settings = {"remote_worker_envs": True, "remote_env_batch_wait_ms": 1e9} if remote else {}
    if remote:
        request.getfixturevalue("small_ray")
    settings |= {"env_config": {"lengths": LENGTHS}, "num_envs_per_worker": 2, "rollout_fragment_length": 30}
    worker = RolloutWorker(cls, AlwaysZero, config=settings)
    batch, metrics = worker.sample(), worker.get_metrics()
    worker.stop()
    assert {(episode.env_index, episode.length, episode.reward) for episode in metrics} == {(0, 2, 0.0), (1, 5, 5.0)}
    assert {*batch["obs"][:, 0].tolist()} == {0, 1}
    np.testing.assert_array_equal(batch["rewards"], batch["obs"][:, 0])
