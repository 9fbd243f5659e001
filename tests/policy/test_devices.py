"""A learner with eight devices learns the same as with one device; checked in a process with eight devices."""

import copy
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces

from rollax.algorithms.ppo import PPO
from rollax.errors import NonFiniteError
from rollax.models.outputs import Outputs
from rollax.policy import devices
from rollax.policy.devices import ActingDevice
from rollax.policy.learner import Devices
from rollax.search import searched_policy
from rollax.search.es import ES
from tests.policy import test_recurrent_policy as recurrent
from tests.policy.small_ppo import CHOICES, SEEN, SMALL, Stateful, experience, seen
from tests.policy.small_ppo import make as make_ppo
from tests.policy.test_targets import Distilled
from tests.python_process import on_cpus

DEVICES = 8


def rows(policy: Any, seed: int) -> Any:
    return experience(policy, 41, seed)  # padded to 44, which 8 does not divide


def sequences(policy: Any, seed: int) -> Any:
    return recurrent.experience(policy, [6, 2, 9, 5, 1, 1, 3], seed)


class InParts(PPO):
    def make_plan(self) -> Any:
        return replace(super().make_plan(), microbatch_size=6)


def microbatched() -> Any:
    return InParts.make_policy(SEEN, CHOICES, {**SMALL, "sgd_minibatch_size": 20})


def with_dropout() -> Any:
    return make_ppo(model={"custom_model": Stateful}, lr=1e-3)


KINDS: dict[str, tuple[Any, Any]] = {
    "minibatches": (lambda: make_ppo(sgd_minibatch_size=12, kl_coeff=0.2), rows),
    "microbatches": (microbatched, rows),
    "memory": (lambda: recurrent.make(sgd_minibatch_size=12), sequences),
    "targets": (lambda: Distilled.make_policy(SEEN, CHOICES, SMALL), rows),
    "dropout and batch statistics": (with_dropout, rows),
}


def one_and_eight(kind: str) -> tuple[Any, Any, list[Any]]:
    """Two equal policies, and batches for both."""
    make, batch_of = KINDS[kind]
    local_devices = jax.local_devices
    jax.local_devices = lambda: local_devices()[:1]
    one = make()
    jax.local_devices = local_devices
    eight = make()
    assert (one.learner.devices.count, eight.learner.devices.count) == (1, DEVICES)
    return one, eight, [batch_of(one, seed) for seed in range(3)]


def assert_close(left: Any, right: Any, what: str) -> None:
    assert left.keys() == right.keys()
    for name in left:
        if left[name] is None:  # the loss of this algorithm does not return it
            assert right[name] is None, name
            continue
        np.testing.assert_allclose(left[name], right[name], rtol=1e-3, atol=2e-5, err_msg=f"{what}: {name}")


def check_learns_the_same(kind: str) -> None:
    one, eight, batches = one_and_eight(kind)
    one.compute_actions(seen(5), explore=False)
    jax.clear_caches()  # functions that the other one compiled must not count
    compilations = 0
    for number, batch in enumerate(batches):
        actions = [policy.compute_actions(seen(5), explore=False)[0] for policy in (one, eight)]
        np.testing.assert_array_equal(*actions)
        assert_close(one.learn_on_batch(batch), eight.learn_on_batch(batch), f"{kind}, statistics")
        assert_close(one.get_weights(), eight.get_weights(), f"{kind}, weights")
        assert_close(one.targets, eight.targets, f"{kind}, targets")
        (gradients, _), (expected, _) = (policy.compute_gradients(batch) for policy in (eight, one))
        assert_close(expected, gradients, f"{kind}, gradients")
        for policy in (one, eight):
            policy.apply_gradients(gradients)
        if number:
            assert eight.compilations() == compilations, kind
        compilations = eight.compilations()
        # Gradients from elsewhere are placed on the devices.
        eight.set_state(eight.get_state())


def check_rows_are_distributed_and_one_device_acts() -> None:
    _, policy, (batch, *_) = one_and_eight("minibatches")
    placed, shardings, by_row, loss = [], [], policy.learner.devices.by_row, policy.algorithm.loss

    def place(tree: Any) -> Any:
        placed.append(by_row(tree))
        return placed[-1]

    def seen_at(shape: tuple[int, ...], sharding: Any) -> None:
        shardings.append((sharding, shape))

    def spy(model: Any, out: Any, batch: Any, mask: Any, coefficients: Any) -> Any:
        for leaf in (mask, batch["obs"]):
            jax.debug.inspect_array_sharding(leaf, callback=partial(seen_at, leaf.shape))
        return loss(model, out, batch, mask, coefficients)

    algorithm = policy.learner.steps.objective.algorithm  # equal policies share it
    policy.learner.devices.by_row, vars(algorithm)["loss"] = place, spy
    jax.clear_caches()  # the loss is traced again
    policy.learn_on_batch(batch)
    (columns,) = placed
    for name, column in columns.items():
        assert len(column.sharding.device_set) == DEVICES, name
        # 41 rows are padded to 44, and those to 48.
        assert {shard.data.shape[0] for shard in column.addressable_shards} == {6}, name
    # Of the minibatches of 12, padded to 16, each device has 2 rows.
    assert {sharding.shard_shape(shape)[0] for sharding, shape in shardings} == {2}
    for name, leaf in {**policy.params, **policy.extra}.items():
        assert len(leaf.sharding.device_set) == 1, name
    for leaf in jax.tree.leaves(policy.learner.variables.optimizer_state):
        assert len(leaf.sharding.device_set) == DEVICES
        assert leaf.is_fully_replicated


def check_acts_on_the_cpu_beside_a_gpu() -> None:
    """The last device stands for the CPU: the others learn, small calls act on the CPU, large ones do not."""
    cpu, obs = jax.local_devices()[-1], seen(8)
    (_, beside, _), (_, alone, _) = one_and_eight("minibatches"), one_and_eight("minibatches")
    device = beside.__dict__["_acting_device"] = ActingDevice(cpu)
    ran: list[Any] = []
    for name in ("_act", "_modes", "values"):  # of the actor of both policies, which are equal
        vars(alone.actor)[name] = Noted(getattr(alone.actor, name), ran)

    def calls(policy: Any) -> list[Any]:
        ran.clear()
        explored, greedy = policy.compute_actions(obs), policy.compute_actions(obs, explore=False)
        return jax.tree.leaves([explored, greedy, policy.act_greedily(obs), policy.compute_values(obs)])

    for seed in range(2):
        on_cpu = calls(beside)
        assert len(ran) == 4
        assert set.union(*ran) == {cpu}
        for left, right in zip(on_cpu, calls(alone), strict=True):
            np.testing.assert_array_equal(left, right)
        assert cpu not in set.union(*ran)
        copies = device.arrays(beside.actor.outputs, beside.params, beside.extra, {"obs": obs})
        assert copies is device.arrays(beside.actor.outputs, beside.params, beside.extra, {"obs": obs})
        batch = experience(alone, 41, seed)
        experience(beside, 41, seed)  # as many random numbers
        for policy in (beside, alone):
            policy.learn_on_batch(batch)
        assert all(cpu not in leaf.devices() for leaf in beside.params.values())
        assert_close(beside.get_weights(), alone.get_weights(), "weights")
    # A JAX array may be tied to the GPU, so such a call stays there.
    tied = jax.device_put(obs, jax.local_devices()[0])
    ran.clear()
    np.testing.assert_array_equal(beside.act_greedily(obs), beside.act_greedily(tied))
    assert ran == [{cpu}, {tied.device}]


def check_large_calls_act_where_the_parameters_are() -> None:
    policy = one_and_eight("minibatches")[1]
    device = ActingDevice(jax.local_devices()[-1])
    arrays = policy.params, policy.extra
    assert device.arrays(policy.actor.outputs, *arrays, {"obs": seen(2**18)}) == arrays
    assert device._copies._last is None  # nothing keeps the first parameters
    policy.__dict__["_acting_device"] = device
    copied, obs = copy.deepcopy(policy), seen(8)
    np.testing.assert_array_equal(copied.compute_values(obs), policy.compute_values(obs))


def check_candidates_act_on_the_cpu() -> None:
    """With model state on another device, as after an update."""
    cpu = jax.local_devices()[-1]
    devices.cpu_beside_gpu, found = (lambda: cpu), devices.cpu_beside_gpu
    searched_policy.cpu_beside_gpu = devices.cpu_beside_gpu
    try:
        policy = ES.make_policy(SEEN, spaces.Box(-1, 1, (2,)), {"model": {"custom_model": WithState}, "seed": 0})
        stacked = policy.stacked(3)
        for slot in range(3):
            stacked.set_vector(slot, policy.get_vector())
        stacked.set_obs(np.arange(3), seen(3))
        extra = jax.device_put(dict(policy.extra), jax.local_devices()[1])
        actions, finite = stacked.actions(np.arange(3), extra)
        assert all(leaf.devices() == {cpu} for leaf in stacked.blocks[0].values())
        assert finite.all()
        np.testing.assert_allclose(actions, policy.act_greedily(seen(3)), rtol=1e-6)
    finally:
        devices.cpu_beside_gpu = searched_policy.cpu_beside_gpu = found


class WithState(nnx.Module):
    """A model with other state than parameters."""

    def __init__(self, observation_space: Any, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, num_outputs, rngs=rngs)
        self.scale = nnx.Variable(jax.numpy.full(num_outputs, 2.0))

    def __call__(self, obs: jax.Array) -> Outputs:
        return Outputs(self.scale[...] * self.linear(obs))


class Noted:
    """A compiled function that notes the devices of its results."""

    def __init__(self, function: Any, ran: list[Any]) -> None:
        self.function, self.ran = function, ran

    def __call__(self, *arguments: Any) -> Any:
        results = self.function(*arguments)
        if isinstance(jax.tree.leaves(results)[0], jax.core.Tracer):
            return results  # only its cost is asked for
        self.ran.append(set.union(*(leaf.devices() for leaf in jax.tree.leaves(results))))
        return results


def check_stops_before_a_non_finite_step() -> None:
    one, eight, (batch, *_) = one_and_eight("minibatches")
    batch["advantages"][3] = np.nan
    messages = []
    for policy in (one, eight):
        with pytest.raises(NonFiniteError) as error:
            policy.learn_on_batch(batch)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert_close(one.get_weights(), eight.get_weights(), "weights")


def check(kinds: list[str]) -> None:
    """All checks."""
    warnings.simplefilter("error")
    for kind in kinds:
        check_learns_the_same(kind)
    check_rows_are_distributed_and_one_device_acts()
    check_large_calls_act_where_the_parameters_are()
    check_candidates_act_on_the_cpu()
    check_stops_before_a_non_finite_step()
    check_acts_on_the_cpu_beside_a_gpu()  # the last, as it replaces functions that equal policies share


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["minibatches"], [*KINDS]], ids=["one", "all"])
def test_eight_devices_learn_the_same(kinds):
    on_cpus(DEVICES, "-c", f"from tests.policy.test_devices import check; check({kinds})")


def test_with_one_device_nothing_is_placed_by_hand():
    devices = Devices(jax.local_devices()[:1])
    tree = {"x": np.zeros(3)}
    places = devices.everywhere, devices.by_row, devices.share_rows, devices.gathered, devices.first
    for placed in (place(tree) for place in places):
        assert placed is tree
