"""JAX policies in the sampler: bounded compilations, and columns."""

import pytest

from rollax import PPOConfig, RolloutWorker
from rollax.algorithms.ppo import PPO
from tests.rollout.worlds import ALL, Line, Scripted

MODEL = {"fcnet_hiddens": (4,)}


def make(env=Line, **config) -> RolloutWorker:
    return RolloutWorker(env, PPO, config=PPOConfig(model=MODEL, seed=2, **config))


def varying(agents: int) -> list[dict]:
    """An episode with all numbers of acting agents from 1 on."""
    names = [chr(ord("a") + i) for i in range(agents)]
    steps = [dict.fromkeys(names[:count], "or") for count in range(1, agents + 1)]
    return [*steps, {**steps[-1], ALL: "T"}]


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
def test_compilations_do_not_grow_with_the_numbers_of_ready_agents():
    worker = make(lambda c: Scripted([varying(20)], c.vector_index), num_envs_per_worker=2, rollout_fragment_length=50)
    policy = worker.get_policy()
    assert sum(len(worker.sample()) for _ in range(6)) > 4500
    worker.evaluate(2)
    # Up to 40 agents act at once: 2, 4, 8, 16, 32, 64 rows (or 1), and values of at most as many segments.
    assert policy.compilations() <= 7 + 7  # type: ignore[attr-defined]
