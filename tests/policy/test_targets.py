"""Target parameters of a `JaxPolicy`: their columns, updates, state, and refused ones."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax.algorithms.ppo import PPO
from rollax.config.multiagent import SharedParts
from rollax.errors import PolicyError
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.shared_variables import SharedVariables
from rollax.policy.targets import periodic_copy, polyak_average
from rollax.policy.update_plan import UpdatePlan
from tests.policy.small_ppo import CHOICES, SEEN, SMALL, experience
from tests.policy.test_recurrent_policy import LSTM
from tests.policy.test_recurrent_policy import experience as trajectories

TAU, PARTS = 0.25, ("policy_trunk", "value_trunk", "policy_head", "value_head")


class Distilled(PPO):
    """Its values learn the product of the current values and those of the target."""

    def make_plan(self) -> UpdatePlan:
        return replace(super().make_plan(), updated_targets=polyak_average(TAU, PARTS, interval=2))

    def targets(self, model: Any, target_model: Any, batch: Any, mask: Any, coefficients: Any) -> dict:
        values, target_values = (self.forward(one, batch).value for one in (model, target_model))
        return {"wanted": values * target_values + coefficients["clip_param"], "seen": mask}

    def loss(self, model: Any, out: Any, batch: Any, mask: Any, coefficients: Any) -> tuple[jax.Array, dict]:
        errors = (out.value - batch["wanted"]) ** 2
        return masked_mean(errors, mask), {"wanted": masked_mean(batch["wanted"], mask), "seen": batch["seen"].sum()}


def make(**config: Any) -> Distilled:
    return Distilled.make_policy(SEEN, CHOICES, {**SMALL, **config})


def test_parts_without_an_update_are_refused():
    class WithoutUpdates(Distilled):
        def make_plan(self) -> UpdatePlan:
            return replace(super().make_plan(), updated_targets=polyak_average(TAU, (*PARTS, "critic")))

    policy = WithoutUpdates.make_policy(SEEN, CHOICES, SMALL)
    with pytest.raises(PolicyError, match=r"got: +\['critic'\](.|\n)*value_trunk"):
        policy.learn_on_batch(experience(policy, 24))


def arrays(columns: Any) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in columns.items()}


def assert_equal(left: Any, right: Any, **tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], err_msg=name, **{"rtol": 0, **tolerance})


def updated(policy: Any) -> Any:
    """The policy after an update, so that its targets are not its parameters."""
    policy.learn_on_batch(experience(policy, 24))
    assert not np.array_equal(policy.targets["value_head.kernel"], policy.params["value_head.kernel"])
    return policy


@pytest.mark.long
def test_columns_use_both_models_without_gradients():
    policy = updated(make())
    batch = experience(policy, 13)
    obs = jnp.asarray(batch["obs"])

    def values(params: Any) -> jax.Array:
        return policy.split.merge(params, policy.extra)(obs)[1]

    wanted = np.array(values(policy.params) * values(policy.targets) + 0.2)
    expected = jax.grad(lambda params: jnp.mean((values(params) - wanted) ** 2))(dict(policy.params))
    gradients, stats = policy.compute_gradients(batch)
    assert_equal(gradients, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(stats["wanted"], wanted.mean(), rtol=1e-5)
    assert stats["seen"] == 13


def test_are_updated_inside_the_update_by_the_hook():
    # 8 rows in minibatches of 4, once: two steps, and the target moves after the second.
    policy = make(sgd_minibatch_size=4, num_sgd_iter=1)
    before = arrays(policy.targets)
    assert_equal(before, arrays(policy.params))
    policy.learn_on_batch(experience(policy, 8))
    after = {name: TAU * np.array(policy.params[name]) + (1 - TAU) * value for name, value in before.items()}
    assert_equal(arrays(policy.targets), after, rtol=1e-6, atol=1e-7)
    policy.apply_gradients({name: np.ones_like(value) for name, value in after.items()})  # the third
    assert_equal(arrays(policy.targets), after, rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_columns_have_one_row_each_with_memory():
    policy: Any = Distilled.make_policy(SEEN, CHOICES, {**SMALL, "model": LSTM})
    batch = trajectories(policy, [3, 7, 1])
    _, stats = policy.compute_gradients(batch)
    assert stats["seen"] == 11  # of 5 sequences of 4
    # The target equals the model, and states are those of sampling: v·v + clip.
    np.testing.assert_allclose(stats["wanted"], np.mean(batch["vf_preds"] ** 2) + 0.2, rtol=1e-4)


def test_targets_of_another_model_are_refused():
    state = updated(make()).get_state()
    del state["targets"]["value_head.bias"]
    with pytest.raises(PolicyError, match=r"different model(.|\n)*'default_policy', target parameters"):
        make().set_state(state)


def test_reading_the_state_creates_no_targets():
    # A policy with shared variables may still change them before its own first update.
    policy, other = make(), updated(make(seed=99))
    other.set_state(policy.get_state())
    for one in (policy, other):
        moved_values = {name: np.array(value) + 1 for name, value in one.params.items()}
        one.params = {name: jnp.array(value) for name, value in moved_values.items()}
        assert_equal(arrays(one.targets), moved_values)


def test_new_weights_reset_the_targets():
    policy, other = updated(make()), make(seed=99)
    assert policy.get_weights().keys() == policy.params.keys()  # without targets
    policy.set_weights(other.get_weights())
    assert_equal(arrays(policy.targets), other.get_weights())


def test_are_not_shared_but_start_as_shared_variables():
    policies = {"a": make(seed=1), "b": make(seed=2)}
    SharedVariables({"all": SharedParts(parts=("policy_head", "value_head"))}, policies)
    a, b = policies["a"], policies["b"]
    assert_equal(arrays(b.targets), b.get_weights())
    np.testing.assert_array_equal(b.targets["value_head.kernel"], a.params["value_head.kernel"])
    before = arrays(updated(b).targets)
    updated(a)
    np.testing.assert_array_equal(b.params["value_head.kernel"], a.params["value_head.kernel"])
    assert_equal(arrays(b.targets), before)
    updated(b)


class SharedEncoder(nnx.Module):
    """Actor and critic with one encoder, which is named as part of the actor."""

    def __init__(self, observation_space: Any, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        encoder = nnx.Linear(3, 4, rngs=rngs)
        self.actor = nnx.Sequential(encoder, nnx.Linear(4, num_outputs, rngs=rngs))
        self.critic_net = nnx.Sequential(encoder, nnx.Linear(4, 1, rngs=rngs))

    def __call__(self, obs: Any) -> Outputs:
        return Outputs(self.actor(obs), self.critic_net(obs)[:, 0])


@pytest.mark.short("parts0")
@pytest.mark.parametrize("parts", [("critic_net",), ("actor", "critic_net")])
def test_targets_of_an_encoder_that_two_parts_share(parts: Any) -> None:
    class Averaged(PPO):
        def make_plan(self) -> UpdatePlan:
            return replace(super().make_plan(), updated_targets=polyak_average(TAU, parts))

    config = {"sgd_minibatch_size": 8, "num_sgd_iter": 1, "seed": 0, "model": {"custom_model": SharedEncoder}}
    if len(parts) == 1:
        message = r"never change(.|\n)*actor.layers.0.bias, which is in \['critic_net'\] too"
        with pytest.raises(PolicyError, match=message):
            Averaged.make_policy(SEEN, CHOICES, config)
        return
    policy = Averaged.make_policy(SEEN, CHOICES, config)
    before = arrays(policy.targets)
    policy.learn_on_batch(experience(policy, 24))
    assert not np.array_equal(before["actor.layers.0.kernel"], policy.targets["actor.layers.0.kernel"])


@pytest.mark.parametrize("interval", [1, 2])
def test_averages_are_projected(interval):
    # (1, 0) and (0, 1) with τ = ½: (½, ½), of the norm √½. Other targets are constant.
    def on_circle(targets):
        return {name: value / jnp.linalg.norm(value) for name, value in targets.items()}

    updated = polyak_average(0.5, ("a",), interval=interval, projection=on_circle)
    targets, params = ({f"{part}.w": jnp.array(w, jnp.float32) for part in "ab"} for w in ([1, 0], [0, 1]))
    after = updated(targets, params, interval)
    np.testing.assert_allclose(after["a.w"], [np.sqrt(0.5)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(after["b.w"], [1, 0])
    if interval > 1:
        np.testing.assert_array_equal(updated(targets, params, 1)["a.w"], [1, 0])


def test_an_interval_beyond_int32_never_ends():
    updated = jax.jit(periodic_copy(2**40))
    found = updated({"a": jnp.zeros(2)}, {"a": jnp.ones(2)}, jnp.int32(2**30))
    np.testing.assert_array_equal(found["a"], 0)
