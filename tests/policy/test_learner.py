"""The compiled update against a plain loop: minibatches, microbatches, target parameters."""

import copy
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rollax.errors import NonFiniteError
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.devices import OneFetch
from rollax.policy.learner import Learner
from rollax.policy.update_plan import Minibatches, UpdatePlan


@dataclass(frozen=True)
class Plain:
    """The objective of a loss that is a function."""

    loss: Any
    optimizer: Any
    plan: UpdatePlan
    count_rows: Any


def learner_of(loss, optimizer, params, extra, *, devices=None, count_rows=lambda batch, mask: mask.sum(), **plan):
    targets, stops = plan.get("updated_targets"), plan.get("stops")
    objective = Plain(loss, optimizer, UpdatePlan(updated_targets=targets, stops=stops), count_rows)
    return Learner(objective, params, extra, devices=devices)


def squared_error(params, targets, extra, batch, mask, coefficients):
    """A weighted linear fit, which also counts steps and rows."""
    errors = (batch["inputs"]["x"] @ params["w"] + params["b"] - batch["y"]) ** 2
    loss = coefficients["weight"] * masked_mean(errors, mask)
    seen = {"steps": extra["steps"] + 1}
    return loss, ({"loss": loss, "rows": mask.sum(), "bias": params["b"]}, seen)


def plain_loss(params, x, y):
    return 0.5 * jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def start():
    params = {"w": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(0.25, jnp.float32)}
    return params, {"steps": jnp.array(0, jnp.int32)}


def data(rows):
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, 3), dtype=np.float32)
    return x, (x @ np.array([1.0, 2.0, 3.0], np.float32) + 0.1 * random.standard_normal(rows)).astype(np.float32)


def padded(x, y, rows):
    extra = rows - len(x)
    # The content of padding must not matter.
    return {
        "inputs": {"x": np.concatenate([x, np.full((extra, 3), 1e3, np.float32)])},
        "y": np.concatenate([y, np.full(extra, -1e3, np.float32)]),
    }


def test_packed_arrays_have_their_dtypes_shapes_and_bits():
    tree = {
        "flag": np.array(True),
        "flags": np.array([[True], [False]]),
        "count": np.int32(2**31 - 1),
        "bytes": np.arange(3, dtype=np.uint8),  # what follows is not aligned
        "numbers": np.array([[-0.0, np.nan, np.inf], [1e-45, 3.4e38, 1.0]], np.float32),
        "empty": np.zeros((0, 2), np.float32),
        "halves": np.array([0.5, -2.0], jnp.bfloat16),
        "none": None,
    }
    fetched = jax.jit(OneFetch)(tree).fetched()
    assert fetched.keys() == tree.keys()
    assert fetched["none"] is None
    for name, array in tree.items():
        if array is not None:
            assert (fetched[name].dtype, fetched[name].shape) == (array.dtype, array.shape)
            assert fetched[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("epochs", [1, 3])  # without and with a loop
def test_state_keeps_its_shape_and_dtype(epochs):
    def loss(params, targets, extra, batch, mask, coefficients):
        value, _ = squared_error(params, targets, {"steps": 0}, batch, mask, coefficients)
        return value, ({}, {"mean": batch["y"].mean().astype(jnp.float16)})

    x, y = data(8)
    learner = learner_of(loss, optax.identity(), start()[0], {"mean": jnp.zeros(1)})
    plan = Minibatches.draw(np.random.default_rng(0), 8, None, epochs)
    learner.learn(padded(x, y, 8), plan, {"lr": 0.1, "weight": 1.0}, "here")
    mean = learner.variables.extra["mean"]
    assert (mean.shape, mean.dtype) == ((1,), jnp.float32)
    np.testing.assert_allclose(mean, [y.mean()], rtol=1e-3)


@pytest.mark.parametrize("rows", [1, 512])  # without and with a loop
def test_statistics_of_any_kind_are_means_of_float32(rows):
    def loss(params, targets, extra, batch, mask, coefficients):
        value, _ = squared_error(params, targets, {"steps": 0}, batch, mask, coefficients)
        found = {"half": jnp.ones((), jnp.bfloat16), "flag": jnp.array(True), "byte": jnp.int8(1), "number": 1}
        return value, (found, {})

    learner = learner_of(loss, optax.identity(), start()[0], {})
    plan = Minibatches.draw(np.random.default_rng(0), rows, 1, 1)
    update = learner.learn(padded(*data(rows), rows), plan, {"lr": 0.0, "weight": 1.0}, "here")
    # 512 steps: a sum of bfloat16 stops at 256, and one of int8 at 127.
    assert update.statistics == {"half": 1.0, "flag": 1.0, "byte": 1.0, "number": 1.0}


class TestLearner:
    @pytest.mark.long
    @pytest.mark.parametrize(("rows", "size"), [(1, 4), (3, None), (10, 4), (33, None), (33, 32), (100, 32)])
    def test_equals_a_plain_loop_without_padding(self, rows, size):
        epochs, lr = 3, 0.05
        x, y = data(rows)
        plan = Minibatches.draw(np.random.default_rng(1), rows, size, epochs)
        params, extra = start()
        learner = learner_of(squared_error, optax.scale_by_adam(), params, extra)
        update = learner.learn(padded(x, y, plan.capacity), plan, {"lr": lr, "weight": 0.5}, where="policy 'p'")

        expected, _ = start()
        adam = optax.adam(lr)
        state, steps = adam.init(expected), []
        for chosen in plan.rows[: plan.steps]:
            chosen = chosen[chosen >= 0]
            loss, gradient = jax.value_and_grad(plain_loss)(expected, x[chosen], y[chosen])
            steps.append((float(loss), len(chosen), float(expected["b"])))
            direction, state = adam.update(gradient, state)
            expected = optax.apply_updates(expected, direction)
        for name, value in expected.items():
            np.testing.assert_allclose(learner.variables.params[name], value, rtol=1e-5, atol=1e-6)
        assert update.error is None
        assert learner.num_updates == plan.steps == learner.variables.extra["steps"]
        # Statistics are plain means over the steps of the last epoch.
        means = np.mean(steps[plan.last_epoch :], axis=0)
        got = [update.statistics[name] for name in ("loss", "rows", "bias")]
        np.testing.assert_allclose(got, means, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("end", [0, 3, 4, 7])  # of 3 epochs of 3 minibatches
    def test_stops_early_before_a_gradient_step(self, end):
        plan = Minibatches.draw(np.random.default_rng(1), 12, 4, 3)
        batch, now = padded(*data(12), plan.capacity), {"lr": 0.05, "weight": 1.0}
        single = [Minibatches(plan.rows[i : i + 1], 1, 0, plan.capacity) for i in range(end + 1)]
        one = learner_of(squared_error, optax.scale_by_adam(), *start())
        before, seen = [], []
        for step in single:
            before.append({name: np.asarray(value) for name, value in one.variables.params.items()})
            seen.append(one.learn(batch, step, now, where="").statistics)

        def stops(stats):
            return jnp.isclose(stats["loss"], seen[end]["loss"])

        learner = learner_of(squared_error, optax.scale_by_adam(), *start(), stops=stops)
        update = learner.learn(batch, plan, now, where="")
        assert learner.num_updates == end == learner.variables.extra["steps"]
        for name, value in before[end].items():
            np.testing.assert_allclose(learner.variables.params[name], value, rtol=1e-6)
        # Means over the minibatches of the epoch in which it stopped.
        means = {name: np.mean([stats[name] for stats in seen[end - end % 3 :]]) for name in seen[0]}
        assert update.statistics == pytest.approx(means, rel=1e-5)
        assert update.error is None

    def test_stops_before_the_step_that_is_not_finite(self):
        x, y = data(8)
        y[5] = np.nan
        plan = Minibatches(np.arange(8, dtype=np.int32).reshape(4, 2), 4, 0, 8)
        params, extra = start()
        learner = learner_of(squared_error, optax.scale_by_adam(), params, extra)
        update = learner.learn(padded(x, y, 8), plan, {"lr": 0.1, "weight": 1.0}, where="policy 'p'")

        reference = learner_of(squared_error, optax.scale_by_adam(), params, extra)
        short = Minibatches(plan.rows, 2, 0, 8)  # the first two steps alone
        reference.learn(padded(x, y, 8), short, {"lr": 0.1, "weight": 1.0}, where="policy 'p'")
        jax.tree.map(np.testing.assert_array_equal, learner.variables.params, reference.variables.params)
        assert learner.variables.extra["steps"] == learner.num_updates == 2
        states = learner.optimizer_arrays(), reference.optimizer_arrays()
        assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])
        message = str(update.error)
        assert isinstance(update.error, NonFiniteError)
        assert "policy 'p', gradient step 2: the loss (loss), the gradient of b, the gradient of w" in message
        assert "columns ['y']" in message

    def test_an_infinite_gradient_of_a_finite_loss_is_detected(self):
        def loss(params, targets, extra, batch, mask, coefficients):
            # The slope of a square root at 0 is infinite.
            return jnp.sqrt(jnp.abs(params["w"])).sum() + masked_mean(batch["y"], mask), ({}, extra)

        params = {"w": jnp.zeros(2)}
        learner = learner_of(loss, optax.scale_by_adam(), params, {})
        plan = Minibatches.draw(np.random.default_rng(0), 2, 2, 2)
        update = learner.learn({"y": np.ones(2, np.float32)}, plan, {"lr": 0.1}, where="policy 'p'")
        assert "gradient step 0: the gradient of w" in str(update.error)
        np.testing.assert_array_equal(learner.variables.params["w"], 0)

    @pytest.mark.parametrize("lr", [1e300, 1e30])
    def test_a_step_to_non_finite_parameters_is_not_made(self, lr):
        # Loss and gradient are finite; the parameters after the second step would not be.
        params, extra = start()
        plan = Minibatches.draw(np.random.default_rng(1), 8, 4, 1)
        batch, gradient = padded(*data(8), 8), {"w": np.ones(3, np.float32), "b": np.float32(0)}
        learner = learner_of(squared_error, optax.identity(), params, extra)
        update = learner.learn(batch, plan, {"lr": lr, "weight": 1.0}, where="policy 'p'")
        assert re.search("policy 'p', gradient step 0: the new value of [wb]", str(update.error))
        with pytest.raises(NonFiniteError, match="policy 'p', gradient step 0: the new value of [wb]"):
            learner.apply(gradient, lr, where="policy 'p'")
        assert learner.num_updates == 0
        jax.tree.map(np.testing.assert_array_equal, learner.variables.params, params)

    def test_one_assignment_ends_an_update(self, monkeypatch):
        # An error before the assignment changes nothing, and no earlier buffer is donated.
        params, extra = start()
        learner = learner_of(squared_error, optax.scale_by_adam(), params, extra)
        plan = Minibatches.draw(np.random.default_rng(1), 8, 4, 2)
        arguments = padded(*data(8), 8), plan, {"lr": 0.1, "weight": 1.0}, "policy 'p'"
        learner.learn(*arguments)
        before = learner.variables
        values = copy.deepcopy(before)
        assigned = []
        monkeypatch.setattr(
            Learner, "__setattr__", lambda self, *new: (assigned.append(new[0]), object.__setattr__(self, *new))
        )
        learner.learn(*arguments)
        assert assigned == ["variables"]
        jax.tree.map(np.testing.assert_array_equal, before, values)


class TestMicrobatches:
    def test_empty_ones_do_not_change_the_state(self):
        # 17 rows in minibatches of 7, 7 and 3, in parts of 3: three, three and one with rows; two epochs.
        plan = Minibatches.draw(np.random.default_rng(1), 17, 7, 2, microbatch_size=3)
        learner = learner_of(squared_error, optax.scale_by_adam(), *start())
        learner.learn(padded(*data(17), plan.capacity), plan, {"lr": 0.05, "weight": 0.5}, where="policy 'p'")
        assert learner.variables.extra["steps"] == 2 * (3 + 3 + 1)

    def test_non_finite_ones_are_detected(self):
        params, extra = start()
        x, y = data(8)
        y[6] = np.inf
        plan = Minibatches.draw(np.random.default_rng(0), 8, None, 1, microbatch_size=3)
        learner = learner_of(squared_error, optax.scale_by_adam(), params, extra)
        update = learner.learn(padded(x, y, 8), plan, {"lr": 0.1, "weight": 1.0}, where="policy 'p'")
        assert "gradient step 0: the loss (loss), the gradient of b" in str(update.error)
        np.testing.assert_array_equal(learner.variables.params["b"], 0.25)


def target_loss(params, targets, extra, batch, mask, coefficients):
    """A loss whose gradient is the mean of y + target."""
    return masked_mean(params["w"] * (batch["y"] + targets["w"]), mask), ({}, extra)


def every_other(targets, params, num_updates):
    return {"w": jnp.where(num_updates % 2 == 0, params["w"] + 10, targets["w"])}


class TestTargets:
    # The step is 0.5 (y + t), and after every other one t becomes w + 10.
    #   step   y     t     y + t     w        t after
    #                               1.0       1.0
    #    1     2    1.0     3.0    -0.5       1.0
    #    2     5    1.0     6.0    -3.5       6.5
    #    3     2    6.5     8.5    -7.75      6.5
    #    4     5    6.5    11.5   -13.5      -3.5
    Y = np.float32([2, 5])
    PLAN = np.array([[0], [1], [0], [1]], np.int32)

    def learner(self):
        params = {"w": jnp.array(1.0, jnp.float32)}
        return learner_of(target_loss, optax.identity(), params, {}, updated_targets=every_other)

    def learn(self, learner, rows, y=Y):
        return learner.learn({"y": y}, Minibatches(rows, len(rows), 0, len(y)), {"lr": 0.5}, where="policy 'p'")

    def values(self, learner):
        return float(learner.variables.params["w"]), float(learner.targets["w"])

    def test_are_updated_after_each_step_by_the_hook(self):
        learner = self.learner()
        np.testing.assert_array_equal(learner.targets["w"], 1.0)
        self.learn(learner, self.PLAN)
        assert self.values(learner) == (-13.5, -3.5)

    @pytest.mark.parametrize("first", [1, 2, 3])
    def test_steps_are_counted_across_calls(self, first):
        learner = self.learner()
        self.learn(learner, self.PLAN[:first])
        self.learn(learner, self.PLAN[first:])
        assert self.values(learner) == (-13.5, -3.5)

    def test_are_used_and_updated_with_applied_gradients(self):
        learner = self.learner()
        for step in range(4):
            plan = Minibatches(self.PLAN[step:], 1, 0, 2)
            gradients, _ = learner.gradients({"y": self.Y}, plan, {"lr": 0.5})
            learner.apply({"w": np.array(gradients["w"])}, 0.5, where="")
        assert self.values(learner) == (-13.5, -3.5)

    def test_are_not_changed_by_a_non_finite_step(self):
        learner = self.learner()
        update = self.learn(learner, np.array([[0], [1], [2], [1]], np.int32), np.float32([2, 5, np.nan]))
        assert "gradient step 2" in str(update.error)
        assert self.values(learner) == (-3.5, 6.5)

    def test_loss_without_targets_has_none(self):
        params, extra = start()
        assert learner_of(squared_error, optax.scale_by_adam(), params, extra).targets == {}


class TestCoefficients:
    def learned(self, loss, params, coefficients, steps=3):
        learner = learner_of(loss, optax.identity(), params, {})
        plan = Minibatches(np.zeros((steps, 1), np.int32), steps, 0, 1)
        learner.learn({"y": np.float32([2])}, plan, coefficients, where="policy 'p'")
        return learner

    def test_each_part_of_the_model_has_its_own_step_size(self):
        # The gradients are 2 and -2: 1 - 2/2 = 0 and 1 + 2/4 = 1.5.
        def loss(params, targets, extra, batch, mask, coefficients):
            return masked_mean((params["a.x.w"] - params["b.w"]) * batch["y"], mask), ({}, extra)

        params = {"a.x.w": jnp.float32(1), "b.w": jnp.float32(1)}
        rates = {"a": 0.5, "b": 0.25}
        learner = self.learned(loss, dict(params), {"lr": rates}, steps=1)
        params = learner.variables.params
        assert (float(params["a.x.w"]), float(params["b.w"])) == (0.0, 1.5)
        gradients = {"a.x.w": np.float32(2), "b.w": np.float32(-2)}
        learner.apply(gradients, rates, where="policy 'p'")
        applied = learner.variables.params
        assert (float(applied["a.x.w"]), float(applied["b.w"])) == (-1.0, 2.0)

    def test_loss_receives_the_number_of_earlier_steps(self):
        # The gradient is 10 to the power of the number of steps, with step size 1: digits from right to left.
        def loss(params, targets, extra, batch, mask, coefficients):
            before = 10.0 ** coefficients["num_updates"]
            return masked_mean(-params["w"] * before * jnp.ones_like(mask), mask), ({"before": before}, extra)

        params = {"w": jnp.float32(0)}
        learner = self.learned(loss, params, {"lr": 1.0})
        assert float(learner.variables.params["w"]) == 111.0
        plan = Minibatches(np.zeros((1, 1), np.int32), 1, 0, 1)
        _, stats = learner.gradients({"y": np.float32([2])}, plan, {"lr": 1.0})
        assert stats["before"] == 1000.0
        learner.learn({"y": np.float32([2])}, plan, {"lr": 1.0}, where="policy 'p'")
        assert float(learner.variables.params["w"]) == 1111.0
