"""Plans with steps by part: a part of the model that makes every k-th gradient step only, in JAX and PyTorch."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples.torch_sac import TorchSAC
from rollax import SAC, PolicyError, SampleBatch
from rollax.policy.gradient_transforms import by_part
from rollax.policy.learner import Learner
from rollax.policy.update_plan import Minibatches, UpdatePlan
from tests.policy.test_learner import Plain
from tests.torch.made import BOX, REPLAY, SEEN

EVERY = {"b": 2, "c": 3}
PARTS = ("a", "b", "c")


def slopes(params, targets, extra, batch, mask, coefficients):
    """Each part has the gradient 1, a statistic and a count of its own calls; waiting parts have no statistic."""
    parts = coefficients["parts"]
    statistics = {f"of_{part}": params[f"{part}.w"] for part in parts} | {"steps": coefficients["num_updates"]}
    if "c" in parts:
        statistics["row"] = batch["x"]
    counts = {name: count + 1 for name, count in extra.items()}
    return sum(params.values()), (statistics, counts)


def learner_of(optimizer=None, plan=UpdatePlan(every=EVERY)):  # noqa: B008  frozen
    optimizer = by_part(dict.fromkeys(PARTS, optimizer or optax.identity()), EVERY)
    params = {f"{part}.w": jnp.zeros(()) for part in PARTS}
    counts = {f"{part}.calls": jnp.int32(0) for part in (*PARTS, "d")}
    return Learner(Plain(slopes, optimizer, plan, lambda batch, mask: mask.sum()), params, counts)


def learned(learner, steps):
    """The result of an update with this number of gradient steps of one row each, at the learning rate 1."""
    plan = Minibatches.draw(np.random.default_rng(0), steps, 1, 1)
    return learner.learn({"x": np.zeros(plan.capacity, np.float32)}, plan, {"lr": 1.0}, "here")


def values(learner):
    return {name.partition(".")[0]: float(value) for name, value in learner.variables.params.items()}


class TestLearner:
    @pytest.mark.parametrize("calls", [(7,), (1, 2, 4), (1,) * 7])
    def test_a_part_makes_every_kth_step_across_calls(self, calls):
        learner, total = learner_of(), 0
        for steps in calls:
            learned(learner, steps)
            total += steps
            # Gradient descent with the gradient 1 and the learning rate 1.
            assert values(learner) == {"a": -total, "b": -(total // 2), "c": -(total // 3)}
            extra = {name: int(value) for name, value in learner.variables.extra.items()}
            assert extra == {"a.calls": total, "b.calls": total // 2, "c.calls": total // 3, "d.calls": total}

    def test_statistics_are_means_over_the_steps_that_have_them(self):
        # Parameters before step 0, 1, 2, ...:  a: 0, -1, -2, -3, -4;  b steps at 1 and 3: 0, -1;  c at 2: 0.
        learner = learner_of()
        assert learned(learner, 1).statistics == {"of_a": 0.0, "steps": 0.0}
        assert learned(learner, 4).statistics == {"of_a": -2.5, "of_b": -0.5, "of_c": 0.0, "steps": 2.5}

    def test_statistics_by_row_are_those_of_the_last_step_that_has_them(self):
        # Six steps of one row each: the third and the sixth are those of c.
        learner, plan = learner_of(), Minibatches.draw(np.random.default_rng(0), 3, 1, 2, in_order=True)
        numbers = np.arange(1, 1 + plan.capacity, dtype=np.float32)
        update = learner.learn({"x": numbers}, plan, {"lr": 1.0}, "here")
        np.testing.assert_array_equal(update.rows["row"][:3], [0, 0, 3])

    def test_moments_and_counts_of_a_part_wait_with_it(self):
        learner = learner_of(optax.scale_by_adam())
        for step in range(1, 7):
            before = learner.optimizer_arrays()
            learned(learner, 1)
            now = learner.optimizer_arrays()
            changed = {name for name in now if not np.array_equal(now[name], before[name])}
            for part in PARTS:
                due = step % EVERY.get(part, 1) == 0
                moved = [name for name in changed if f"'{part}'" in name and "mu" in name]
                assert bool(moved) == due, (part, step)
        counts = {name: int(value) for name, value in learner.optimizer_arrays().items() if name.endswith("count")}
        assert sorted(counts.values()) == [2, 3, 6]

    def test_gradients_are_of_the_parts_that_make_the_step(self):
        learner = learner_of()
        for waiting in ({"b", "c"}, {"c"}, {"b"}):
            plan = Minibatches.draw(np.random.default_rng(0), 1, None, 1)
            gradients, statistics = learner.gradients({"x": np.zeros(1, np.float32)}, plan, {"lr": 1.0})
            assert {part for part in PARTS if gradients[f"{part}.w"] == 0} == waiting
            assert {f"of_{part}" for part in PARTS} - statistics.keys() == {f"of_{part}" for part in waiting}
            learner.apply(gradients, 1.0, "here")
        assert values(learner) == {"a": -3, "b": -1, "c": -1}

    def test_microbatches(self):
        learner = learner_of()
        for _ in range(6):
            plan = Minibatches.draw(np.random.default_rng(0), 4, None, 1, microbatch_size=2)
            learner.learn({"x": np.zeros(4, np.float32)}, plan, {"lr": 1.0}, "here")
        assert values(learner) == {"a": -6, "b": -3, "c": -2}


def with_steps(base: Any, every: dict[str, int], **members: Any) -> Any:
    def make_plan(self):
        return replace(base.make_plan(self), every=every)

    return type("Delayed", (base,), {"make_plan": make_plan, **members})


def rates(self, lr):
    return dict.fromkeys(("actor", "critics", "log_alpha"), lr)


KINDS = {"SAC": (SAC, {}), "TorchSAC": (TorchSAC, {"learning_rates": rates})}


def replayed(rows=8):
    random = np.random.default_rng(0)
    shapes = {"obs": (3,), "new_obs": (3,), "actions": (2,), "rewards": (), "discounts": (), "weights": ()}
    return SampleBatch({n: random.uniform(0, 1, (rows, *shape)).astype(np.float32) for n, shape in shapes.items()})


@pytest.mark.parametrize("kind", KINDS)
class TestPolicies:
    every = {"actor": 2, "log_alpha": 3}

    def policy(self, kind):
        base, members = KINDS[kind]
        return with_steps(base, self.every, **members).make_policy(SEEN, BOX, REPLAY)

    def moved(self, policy, before):
        now = policy.get_weights()
        return {name.partition(".")[0] for name in now if not np.array_equal(now[name], before[name])}

    @pytest.mark.long
    def test_only_parts_that_are_due_change(self, kind):
        policy = self.policy(kind)
        for step in range(1, 8):
            before, optimizer = policy.get_weights(), policy.get_state()["optimizer"]
            policy.learn_on_batch(replayed())
            due = {"critics", *(part for part, interval in self.every.items() if step % interval == 0)}
            assert self.moved(policy, before) == due
            after = policy.get_state()["optimizer"]
            of_actor = {n for n, value in after.items() if "actor" in n and np.size(value) > 1}
            assert any(not np.array_equal(after[n], optimizer.get(n)) for n in of_actor) == ("actor" in due)

    def test_parts_that_the_model_does_not_have_are_refused(self, kind):
        base, members = KINDS[kind]
        with pytest.raises(PolicyError, match="value_net"):
            with_steps(base, {"value_net": 2}, **members).make_policy(SEEN, BOX, REPLAY)


@pytest.mark.long
def test_statistics_without_a_step_are_none():
    policy = with_steps(SAC, {"actor": 3, "log_alpha": 3}).make_policy(SEEN, BOX, REPLAY)
    stats = [policy.learn_on_batch(replayed()) for _ in range(3)]
    assert [one["actor_loss"] is None for one in stats] == [True, True, False]
    assert all(isinstance(one["critic_loss"], float) for one in stats)


@pytest.mark.parametrize("interval", [0, -1, 1.5, True])
def test_intervals_are_integers_of_at_least_one(interval):
    with pytest.raises(PolicyError, match="actor"):
        UpdatePlan(every={"actor": interval})


def test_an_optimizer_that_does_not_wait_is_refused():
    def make_optimizer(self):
        return optax.scale_by_rms()

    with pytest.raises(PolicyError, match=r"\['actor'\](.|\n)*by_part"):
        with_steps(SAC, {"actor": 2}, make_optimizer=make_optimizer).make_policy(SEEN, BOX, REPLAY)


@pytest.mark.long
def test_an_optimizer_of_ones_own_that_waits():
    def make_optimizer(self):
        return by_part(dict.fromkeys(("actor", "critics", "log_alpha"), optax.scale_by_rms()), self.plan.every)

    policy = with_steps(SAC, {"actor": 2}, make_optimizer=make_optimizer).make_policy(SEEN, BOX, REPLAY)
    before = policy.get_weights()
    policy.learn_on_batch(replayed())
    np.testing.assert_array_equal(policy.get_weights()["actor.head.bias"], before["actor.head.bias"])
