"""Tests of all actor-critics: with every kind of action, with memory, and with several policies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from examples.parametric_actions import ParametricCartPole
from rollax import MultiAgentBatch, RolloutWorker, SampleBatch
from rollax.algorithms.registry import get_trainer_class
from rollax.policy.recurrent_columns import as_rows
from rollax.policy.traces import trace_count
from tests.algorithms.envs import Echo, MaskedCartPole, TwoAgents

ALGORITHMS = ("A3C", "A2C", "IMPALA", "APPO")
BOX = spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))
MEMORY = {
    "use_lstm": True,
    "lstm_cell_size": 3,
    "fcnet_hiddens": (4,),
    "max_seq_len": 4,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}


def echo(space: spaces.Space) -> dict[str, Any]:
    return {"env": Echo, "env_config": {"space": space}}


NESTED = spaces.Tuple([spaces.Discrete(3), spaces.Dict({"b": BOX, "a": spaces.MultiDiscrete([3, 2])})])
KINDS: dict[str, dict[str, Any]] = {
    "discrete": echo(spaces.Discrete(4, start=-1)),
    "continuous": echo(BOX),
    "nested": echo(NESTED),
    "masked": {"env": MaskedCartPole},
    "parametric, with a memory": {"env": ParametricCartPole, "model": MEMORY},
    "memory": {**echo(spaces.Discrete(3)), "model": MEMORY},
    "two policies": {
        "env": TwoAgents,
        "multiagent": {"policies": {"left": None, "right": None}, "policy_mapping_fn": lambda agent: agent},
    },
}
WITHOUT_VTRACE = {"vtrace": False, "use_kl_loss": True}
VARIANTS = [*((name, {}) for name in ALGORITHMS), ("APPO", WITHOUT_VTRACE)]
each_variant = pytest.mark.parametrize(("algorithm", "options"), VARIANTS, ids=[*ALGORITHMS, "APPO without V-trace"])
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def make(algorithm: str, kind: str, **options: Any) -> RolloutWorker:
    trainer_class = get_trainer_class(algorithm)
    config = {
        "num_envs_per_worker": 2,
        "rollout_fragment_length": 7,  # Echo's episodes are truncated after ten steps
        "model": {"fcnet_hiddens": (4,)},
        "seed": 0,
        **KINDS[kind],
        **options,
    }
    config = trainer_class.config_class(**config)
    return RolloutWorker(
        config.env,
        config.multiagent.policies or {"default_policy": trainer_class.policy_class},
        policy_mapping_fn=config.multiagent.policy_mapping_fn,
        config=config,
        default_policy_class=trainer_class.policy_class,
    )


def batches_of(worker: RolloutWorker) -> dict[str, SampleBatch]:
    batch = worker.sample()
    return dict(batch) if isinstance(batch, MultiAgentBatch) else {"default_policy": batch}


def learn(policy: Any, batch: SampleBatch) -> dict[str, Any]:
    """One update, as the algorithm makes it."""
    if policy.made_by.__name__ != "A3C":
        return policy.learn_on_batch(batch)
    gradients, stats = policy.compute_gradients(batch)
    policy.apply_gradients(gradients)
    return stats


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        # The short part covers each algorithm and each kind once, not all combinations.
        pytest.param(algorithm, kind, marks=() if (i - k) % len(ALGORITHMS) == 0 else pytest.mark.long)
        for k, kind in enumerate(KINDS)
        for i, algorithm in enumerate(ALGORITHMS)
    ],
)
def test_learns_from_every_kind_of_action(algorithm, kind):
    worker = make(algorithm, kind)
    for policy_id, batch in batches_of(worker).items():
        policy: Any = worker.get_policy(policy_id)
        before = policy.get_weights()
        statistics = learn(policy, batch)
        assert all(np.isfinite(value) for value in statistics.values()), statistics
        after = policy.get_weights()
        assert all(np.isfinite(value).all() for value in after.values())
        assert any(not np.array_equal(value, before[name]) for name, value in after.items())


@each_variant
@pytest.mark.parametrize("kind", ["discrete", pytest.param("memory", marks=pytest.mark.long)])
def test_restoring_continues_exactly(algorithm, options, kind):
    worker = make(algorithm, kind, **options)
    policy: Any = worker.get_policy()
    batch = batches_of(worker)["default_policy"]
    names = set(learn(policy, batch))
    assert {"policy_loss", "vf_loss", "entropy", "vf_explained_var", "total_loss", "cur_lr"} <= names
    again = policy.made_by.make_policy(policy.observation_space, policy.action_space, policy.config)
    again.set_state(policy.get_state())
    batch = batches_of(worker)["default_policy"]
    statistics = learn(policy, batch)
    assert statistics.keys() == names
    assert learn(again, batch) == statistics
    for name, value in policy.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], value)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, WITHOUT_VTRACE], ids=["V-trace", "without"])
def test_outputs_of_sequences_equal_those_of_acting(options):
    worker = make("APPO", "memory", **options)
    policy: Any = worker.get_policy()
    for _ in range(2):
        batch = batches_of(worker)["default_policy"]
    sequences, count = policy.memory.sequences(
        policy.algorithm.drawn(batch, policy.learning_rng), batch, policy.memory.max_seq_len
    )
    rows, mask = as_rows(jax.tree.map(jnp.asarray, sequences), jnp.ones(count))
    assert mask.min() == 0  # some sequences are shorter than others
    dist_inputs, values, *_ = policy.forward(policy.split.merge(policy.params, policy.extra), rows)
    memory = {name: batch[name] for name in policy.memory.columns}
    expected_values = policy.compute_values(batch["obs"], memory)  # bootstrap rows included
    np.testing.assert_allclose(values[mask > 0], expected_values, rtol=1e-4, atol=1e-6)
    logp = np.asarray(policy.distribution.logp(dist_inputs, rows["actions"]))[np.asarray(mask) > 0]
    acted = ~batch["bootstrap"] if "bootstrap" in batch else slice(None)
    np.testing.assert_allclose(logp[acted], batch["action_logp"][acted], rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["IMPALA", "APPO"])
def test_actions_of_an_older_policy_get_importance_weights(algorithm):
    worker = make(algorithm, "discrete")
    policy: Any = worker.get_policy()
    batch = batches_of(worker)["default_policy"]
    rng = np.random.default_rng(0)
    moved = {name: value + rng.normal(size=value.shape).astype(np.float32) for name, value in policy.params.items()}
    policy.set_weights(moved)
    _, stats = policy.compute_gradients(batch)
    # By hand: new probabilities over recorded ones, in all rows but bootstrap rows.
    model = policy.split.merge(policy.params, policy.extra)
    dist_inputs = policy.forward(model, {"obs": jnp.asarray(batch["obs"])}).policy
    logp = np.asarray(policy.distribution.logp(dist_inputs, jnp.asarray(batch["actions"])))
    rhos = np.exp(logp - batch["action_logp"])[~batch["bootstrap"]]
    assert 0 < np.mean(rhos > 1) < 1
    expected = {"mean_rho": rhos.mean(), "max_rho": rhos.max(), "limited_rhos": np.mean(rhos > 1)}
    assert {name: stats[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("cleared_cache")
@each_algorithm
def test_learning_compiles_for_few_sizes_only(algorithm):
    # CartPole's episodes end anywhere, so the number of bootstrap rows differs from fragment to fragment.
    worker = make(algorithm, "masked", rollout_fragment_length=60)
    policy: Any = worker.get_policy()
    sizes = set()
    for _ in range(8):
        batch = batches_of(worker)["default_policy"]
        sizes.add(len(batch))
        learn(policy, batch)
    assert trace_count(policy.learner.steps) <= 3
    assert (len(sizes) > 1) == (algorithm in ("IMPALA", "APPO"))
