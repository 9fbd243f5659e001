"""Equal policies share compiled functions: the second one compiles nothing, and other policies are not affected."""

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from gymnasium import spaces

from rollax import A2C, DDPG, DQN, PPO, SAC, PPOTrainer, SampleBatch

OBS, CHOICES, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)
LAYERS = {"model": {"fcnet_hiddens": (7,)}}
SMALL = {**LAYERS, "sgd_minibatch_size": 8, "num_sgd_iter": 2, "lr": 1e-2}
REPLAYED = {**LAYERS, "train_batch_size": 4}
KINDS = {
    "PPO": (PPO, CHOICES, SMALL),
    "A2C": (A2C, CHOICES, LAYERS),
    "SAC": (SAC, BOX, REPLAYED),
    "DQN": (DQN, CHOICES, REPLAYED),
    "DQN, parameter noise": (DQN, CHOICES, {**REPLAYED, "exploration": "ParameterNoise"}),
    "DDPG": (DDPG, BOX, {**REPLAYED, "policy_delay": 2}),
}


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
    return policy_class.make_policy(OBS, actions, {**config, "seed": seed, **changes})


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
    jax.clear_caches()
    used(make(kind, seed=2))
    with counted() as compiled:
        second = make(kind, seed=1)
        second.name = "another"
        together = used(second)
    assert compiled == []
    equal(together, alone)


def test_an_interrupt_is_never_raised_in_a_comparison_of_arguments(monkeypatch):
    """JAX would turn it into a ValueError."""
    used(make(seed=1))
    used(second := make(seed=2))

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    for kind in (type(second.actor), type(second.learner.steps), type(second.algorithm)):
        monkeypatch.setattr(kind, "__eq__", interrupted)
    used(second)


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
    jax.clear_caches()
    *_, alone, _ = used(make(**changes))
    assert changed == alone != plain


def test_the_order_of_the_parts_of_actions():
    """Logits and masks follow the order of a Dict space, so two orders share nothing."""
    parts, valid = {"a": spaces.Discrete(2), "b": spaces.Discrete(3)}, {"a": [1, 0], "b": [0, 0, 1]}
    obs_space = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(5)})
    for order in ("ab", "ba"):
        policy = PPO.make_policy(obs_space, spaces.Dict([(key, parts[key]) for key in order]), {**SMALL, "seed": 0})
        mask = np.concatenate([valid[key] for key in order]).astype(np.int8)
        actions, *_ = policy.compute_actions({"x": observations(), "action_mask": np.tile(mask, (8, 1))})
        assert {key: set(part.tolist()) for key, part in actions.items()} == {"a": {0}, "b": {2}}


def test_an_attribute_changed_after_acting():
    """The second policy acts on another number of rows, so that the function is traced again."""
    soft = {"exploration": "SoftQ", "temperature": 0.01}
    alone = make("DQN", seed=1, **soft).compute_actions(observations(3))
    jax.clear_caches()
    first, second = (make("DQN", seed=seed, **soft) for seed in (2, 1))
    first.compute_actions(observations(8))
    first.exploration.temperature = 100.0
    equal(second.compute_actions(observations(3)), alone)
    assert second.actor == first.actor


@pytest.mark.long
def test_compiled_functions_hold_no_policy():
    policy = make()
    used(policy)
    refs = [weakref.ref(policy), weakref.ref(policy.learner), *map(weakref.ref, policy.params.values())]
    del policy
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


@pytest.mark.long
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
