"""Equal policies share compiled functions: the second one compiles nothing, and other policies are not affected."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from gymnasium import spaces

from rollax import A2CPolicy, DDPGPolicy, DQNPolicy, PPOPolicy, PPOTrainer, SACPolicy, SampleBatch
from rollax.algorithms.pg import PGPolicy
from rollax.core import sharing
from rollax.policy.learning import constants_of, policy_of

OBS, CHOICES, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
LAYERS = {"model": {"fcnet_hiddens": (7,)}}
SMALL = {**LAYERS, "sgd_minibatch_size": 8, "num_sgd_iter": 2, "lr": 1e-2}
REPLAYED = {**LAYERS, "train_batch_size": 4}
KINDS = {
    "PPO": (PPOPolicy, CHOICES, SMALL),
    "A2C": (A2CPolicy, CHOICES, LAYERS),
    "SAC": (SACPolicy, BOX, REPLAYED),
    "DQN": (DQNPolicy, CHOICES, REPLAYED),
    "DQN, parameter noise": (DQNPolicy, CHOICES, {**REPLAYED, "exploration": "ParameterNoise"}),
    "DDPG": (DDPGPolicy, BOX, {**REPLAYED, "policy_delay": 2}),
}


@pytest.fixture(autouse=True)
def clear_cache():
    sharing.clear()


@contextmanager
def counted() -> Iterator[list[str]]:
    """The functions that JAX traces or compiles in the block."""
    found: list[str] = []
    active = True

    def record(event: str, duration: float, **about: object) -> None:
        if active and event.endswith(("jaxpr_trace_duration", "backend_compile_duration")):
            found.append(f"{event} {about.get('fun_name')}")

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        yield found
    finally:
        active = False


def make(kind="PPO", seed=0, **changes):
    policy_class, actions, config = KINDS[kind]
    return policy_class(OBS, actions, {**config, "seed": seed, **changes})


def observations(rows=8):
    return np.random.default_rng(1).uniform(-1, 1, (rows, 3)).astype(np.float32)


def used(policy, rows=8):
    """Results of acting and learning on random rows, and the weights afterwards."""
    random = np.random.default_rng(2)
    obs = observations(rows)
    actions, _, fetches = policy.compute_actions(obs)
    greedy, *_ = policy.compute_actions(obs, explore=False)
    columns = {name: random.standard_normal(rows).astype(np.float32) for name in ("advantages", "value_targets")}
    columns |= {"rewards": columns["advantages"], "discounts": np.full(rows, 0.9, np.float32), "weights": np.ones(rows)}
    batch = {"obs": obs, "new_obs": obs[::-1].copy(), "actions": actions, **columns, **fetches}
    statistics = policy.learn_on_batch(SampleBatch(batch))
    return actions, greedy, fetches, statistics, policy.get_weights()


def equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("SAC", "DQN, parameter noise")]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["PPO", "DDPG", *LONG])
def test_a_second_policy_compiles_nothing_and_gives_the_same(kind):
    alone = used(make(kind, seed=1))
    sharing.clear()
    used(make(kind, seed=2))
    with counted() as compiled:
        second = make(kind, seed=1)
        second.name = "another"
        together = used(second)
    assert compiled == []
    equal(together, alone)


def test_other_policies_do_not_change():
    first, second = make(seed=1), make(seed=2)
    used(first)
    weights, state = first.get_weights(), copy.deepcopy(first.get_state())
    used(second)
    equal(first.get_weights(), weights)
    equal(first.get_state()["optimizer"], state["optimizer"])
    assert not np.array_equal(weights["policy_head.kernel"], second.get_weights()["policy_head.kernel"])


@pytest.mark.parametrize(
    "changes",
    [
        {"vf_loss_coeff": 0.25},
        pytest.param({"model": {"fcnet_hiddens": (7,), "fcnet_activation": "relu"}}, marks=pytest.mark.long),
    ],
)
def test_another_config_gives_another_loss(changes):
    *_, plain, _ = used(make())
    *_, changed, _ = used(make(**changes))
    sharing.clear()
    *_, alone, _ = used(make(**changes))
    assert changed == alone != plain


class Scaled(PGPolicy):
    """A loss that reads an attribute set by the constructor."""

    def __init__(self, *args):
        super().__init__(*args)
        self.scale = 1.0

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return self.scale * loss, statistics


SCALE = 1.0


class ScaledByAll(PGPolicy):
    """A loss that reads a global variable."""

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return SCALE * loss, statistics


@pytest.mark.long
def test_different_attributes_of_a_user_defined_class():
    losses = []
    for scale in (1.0, 3.0, 1.0):
        policy = Scaled(OBS, CHOICES, {**LAYERS, "seed": 1})
        policy.scale = scale
        *_, statistics, _ = used(policy)
        losses.append(statistics["total_loss"])
    assert losses[1] == pytest.approx(3 * losses[0], rel=1e-6)
    assert losses[2] == losses[0] != 0


def test_a_changed_global_variable_of_a_user_defined_class(monkeypatch):
    losses = []
    for scale in (1.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        *_, statistics, _ = used(ScaledByAll(OBS, CHOICES, {**LAYERS, "seed": 1}))
        losses.append(statistics["total_loss"])
    assert losses[1] == pytest.approx(3 * losses[0], rel=1e-6)


@pytest.mark.long
def test_a_loss_replaced_in_one_policy():
    first, second = make("A2C", seed=1), make("A2C", seed=1)
    plain = second.loss

    def doubled(*args):
        loss, statistics = plain(*args)
        return 2 * loss, statistics

    second.loss = doubled
    losses = [used(policy)[3]["total_loss"] for policy in (first, second, make("A2C", seed=1))]
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-6)
    assert losses[2] == losses[0]


@pytest.mark.long
def test_an_attribute_set_by_the_user():
    first, second = make("DQN", seed=1), make("DQN", seed=1)
    first.something, second.something = 1, 2
    used(first)
    with counted() as compiled:
        used(second)
    assert any("_run_plan" in name for name in compiled)


def test_an_attribute_changed_after_acting():
    """The second policy acts on another number of rows, so that the function is traced again."""
    soft = {"exploration": "SoftQ", "temperature": 0.01}
    alone = make("DQN", seed=1, **soft).compute_actions(observations(3))
    sharing.clear()
    first, second = (make("DQN", seed=seed, **soft) for seed in (2, 1))
    first.compute_actions(observations(8))
    first.exploration.temperature = 100.0
    equal(second.compute_actions(observations(3)), alone)
    assert second._acting is first._acting


@pytest.mark.long
def test_cached_functions_hold_no_policy():
    policy = make()
    used(policy)
    refs = [weakref.ref(policy), weakref.ref(policy.learner), *map(weakref.ref, policy.params.values())]
    acting = policy._acting
    del policy
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert make()._acting is acting


@pytest.mark.long
def test_more_kinds_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(sharing, "_KEPT", 3)
    first = make("A2C", seed=1)
    before = used(first)[-1]
    functions = [weakref.ref(first._learning)]
    for width in (2, 3, 4):
        policy = make("A2C", model={"fcnet_hiddens": (width,)})
        used(policy)
        functions.append(weakref.ref(policy._learning))
    del policy
    gc.collect()
    assert len(sharing._made) == 3
    # The cache has dropped the function of the first policy, which still holds it.
    assert [ref() is None for ref in functions] == [False, True, True, False]
    with counted() as compiled:
        used(first)
    assert compiled == []
    del first
    gc.collect()
    assert functions[0]() is None
    equal(used(make("A2C", seed=1))[-1], before)


def test_a_policy_made_of_constants_has_no_other_attributes():
    policy = make()
    other = policy_of(PPOPolicy, constants_of(policy))
    assert other.config.vf_loss_coeff == policy.config.vf_loss_coeff
    for name in ("timestep", "acting_rng", "params", "kl_coeff", "learner"):
        with pytest.raises(AttributeError):
            getattr(other, name)
    for name in ("seed", "num_workers", "env"):
        with pytest.raises(AttributeError):
            getattr(other.config, name)


def test_second_trainer_second_policy_and_evaluation():
    config = {**SMALL, "train_batch_size": 16, "num_envs_per_worker": 4, "seed": 1}
    with PPOTrainer(env="CartPole-v1", config=config) as trainer:
        first = trainer.train()
        trainer.evaluate(1)
    with counted() as compiled, PPOTrainer(env="CartPole-v1", config=config) as trainer:
        second = trainer.train()
        trainer.evaluate(1)
    assert compiled == []
    assert second["info"] == first["info"]
