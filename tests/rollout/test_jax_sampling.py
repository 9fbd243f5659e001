"""JAX policies in the sampler: bounded compilations, weights, seeds."""

import numpy as np
import pytest

from rollax import PPOConfig, RolloutWorker
from rollax.algorithms.ppo import PPO
from tests.rollout.worlds import ALL, Encode, Line, Scripted

MODEL = {"fcnet_hiddens": (4,)}


def make(env=Line, specs=PPO, mapping=None, **config) -> RolloutWorker:
    config = PPOConfig(model=MODEL, seed=config.pop("seed", 2), **config)
    return RolloutWorker(env, specs, policy_mapping_fn=mapping, config=config)


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
    rows = sum(len(worker.sample()) for _ in range(2))
    assert rows > 1500
    # Up to 40 agents act at once: 2, 4, 8, 16, 32, 64 rows (or 1), and values of at most as many segments.
    compiled = policy.compilations()  # type: ignore[attr-defined]
    assert compiled <= 7 + 7
    for _ in range(3):
        worker.sample()
    assert policy.compilations() <= 7 + 7  # type: ignore[attr-defined]
    worker.sample()
    worker.evaluate(2)
    assert policy.compilations() <= 7 + 7  # type: ignore[attr-defined]


def test_batches_have_the_columns_of_ppo():
    batch = make(rollout_fragment_length=20).sample()
    wanted = {"obs", "actions", "rewards", "terminateds", "truncateds", "eps_id", "action_logp", "action_dist_inputs"}
    assert wanted | {"vf_preds", "advantages", "value_targets"} == set(batch.keys())
    assert batch["action_dist_inputs"].shape == (20, 11)
    assert np.isfinite(batch["advantages"]).all()


def test_numbers_depend_only_on_the_seed():
    first, second, other = (make(rollout_fragment_length=30, seed=seed).sample() for seed in (4, 4, 5))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert (first["actions"] != other["actions"]).any()


def test_greedy_actions_do_not_depend_on_the_number_of_sub_environments():
    def greedy(num_envs: int) -> np.ndarray:
        worker = make(num_envs_per_worker=num_envs, rollout_fragment_length=40, explore=False)
        batch = worker.sample()
        return batch["actions"][batch["obs"][:, 0] == 1][:30]

    alone = greedy(1)
    assert len(alone) == 30
    np.testing.assert_array_equal(alone, greedy(4))
    np.testing.assert_array_equal(alone, greedy(8))


def test_together_with_a_policy_without_jax():
    script = [{"a": "o", "b": "o"}, {"a": "or", "b": "or"}, {"a": "or", "b": "or", ALL: "T"}]
    worker = make(
        lambda _: Scripted([script]),
        {"jax": (PPO, None, None, {"gamma": 0.5}), "numpy": Encode},
        lambda agent: {"a": "jax", "b": "numpy"}[agent],
        rollout_fragment_length=6,
    )
    batch = worker.sample()
    assert (len(batch["jax"]), len(batch["numpy"])) == (6, 6)
    assert "advantages" not in batch["numpy"]
    assert worker.get_policy("jax").config.gamma == 0.5


@pytest.mark.long
def test_weights():
    config = {"rollout_fragment_length": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1}
    worker, other = make(seed=1), make(seed=2, **config)
    weights = worker.get_weights()
    kept = {name: value.copy() for name, value in weights["default_policy"].items()}
    assert any((other.get_weights()["default_policy"][name] != kept[name]).any() for name in kept)
    other.set_weights(weights)
    other.get_policy().learn_on_batch(other.sample())
    for name, value in worker.get_weights()["default_policy"].items():
        np.testing.assert_array_equal(value, kept[name])
        np.testing.assert_array_equal(weights["default_policy"][name], kept[name])
    assert any((other.get_weights()["default_policy"][name] != kept[name]).any() for name in kept)
