"""The minibatch plan, and the compiled update against a plain loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rollax.errors import CheckpointError, NonFiniteError
from rollax.ops.masked import masked_mean
from rollax.policy.learning import Learner, MinibatchPlan, acting_bucket, standardized, training_bucket


def squared_error(params, extra, batch, mask, coefficients):
    """A linear fit, weighted; also counts the rows it saw."""
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
    # What stands in the padding must not matter.
    return {
        "inputs": {"x": np.concatenate([x, np.full((extra, 3), 1e3, np.float32)])},
        "y": np.concatenate([y, np.full(extra, -1e3, np.float32)]),
    }


class TestPlan:
    @pytest.mark.parametrize(("rows", "size", "epochs"), [(1, 4, 2), (4, 4, 3), (5, 4, 3), (100, 32, 2), (130, 128, 3)])
    def test_every_row_once_in_every_epoch(self, rows, size, epochs):
        plan = MinibatchPlan.draw(np.random.default_rng(0), rows, size, epochs)
        per_epoch = -(-rows // size)
        assert plan.steps == epochs * per_epoch <= len(plan.rows)
        assert plan.last_epoch == (epochs - 1) * per_epoch
        orders = []
        for epoch in range(epochs):
            steps = plan.rows[epoch * per_epoch : (epoch + 1) * per_epoch]
            # All minibatches but the last one are full.
            assert (steps[:-1] >= 0).all()
            orders.append(steps.ravel()[:rows])
            assert sorted(orders[-1]) == list(range(rows))
            assert (steps.ravel()[rows:] == -1).all()
        assert (plan.rows[plan.steps :] == -1).all()
        if rows > 4:
            assert not np.array_equal(orders[0], orders[1])

    def test_the_whole_batch_in_its_own_order(self):
        plan = MinibatchPlan.draw(np.random.default_rng(0), 33, None, 1)
        assert plan.rows.shape == (1, 40)
        assert plan.capacity == 40
        np.testing.assert_array_equal(plan.rows[0], [*range(33), *[-1] * 7])

    def test_its_shape_depends_on_the_bucket_alone(self):
        random = np.random.default_rng(0)
        shapes = {MinibatchPlan.draw(random, rows, 32, 3).rows.shape for rows in range(113, 129)}
        assert shapes == {(12, 32)}


def test_buckets():
    assert [acting_bucket(rows) for rows in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]
    assert [training_bucket(rows) for rows in (1, 3, 8, 9, 11, 17, 33, 100, 112, 113, 4000)] == [
        *(1, 3, 8, 10, 12, 20, 40, 112, 112, 128, 4096)
    ]
    for rows in range(1, 3000):
        assert rows <= training_bucket(rows) <= 1.25 * rows + 1
    assert len({training_bucket(rows) for rows in range(1025, 4097)}) == 8


def test_standardized():
    # mean 2, deviation sqrt(2/3)
    np.testing.assert_allclose(standardized(np.float32([1, 2, 3])), np.array([-1, 0, 1]) / np.sqrt(2 / 3), rtol=1e-6)
    assert standardized(np.float32([1, 2])).dtype == np.float32
    # Float32 misses the mean of these; dividing what is left by itself would make large numbers of nothing.
    np.testing.assert_array_equal(standardized(np.full(1001, 0.1, np.float32)), 0)


class TestLearner:
    @pytest.mark.parametrize(("rows", "size"), [(1, 4), (3, None), (10, 4), (33, None), (33, 32), (100, 32)])
    def test_equals_a_plain_loop_without_padding(self, rows, size):
        epochs, lr = 3, 0.05
        x, y = data(rows)
        plan = MinibatchPlan.draw(np.random.default_rng(1), rows, size, epochs)
        params, extra = start()
        learner = Learner(squared_error, optax.scale_by_adam(), params)
        update = learner.learn(
            params, extra, padded(x, y, plan.capacity), plan, {"lr": lr, "weight": 0.5}, where="policy 'p'"
        )

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
            np.testing.assert_allclose(update.params[name], value, rtol=1e-5, atol=1e-6)
        assert update.error is None
        assert learner.num_updates == plan.steps == update.extra["steps"]
        # Statistics are plain means over the steps of the last epoch.
        means = np.mean(steps[plan.last_epoch :], axis=0)
        got = [update.statistics[name] for name in ("loss", "rows", "bias")]
        np.testing.assert_allclose(got, means, rtol=1e-4, atol=1e-6)

    def test_one_compilation_for_all_sizes_of_a_bucket(self):
        params, extra = start()
        learner = Learner(squared_error, optax.scale_by_adam(), params)
        for rows in range(113, 129):
            plan = MinibatchPlan.draw(np.random.default_rng(rows), rows, 32, 2)
            batch = padded(*data(rows), plan.capacity)
            update = learner.learn(params, extra, batch, plan, {"lr": rows / 1e4, "weight": 1.0}, where="")
            params, extra = update.params, update.extra
        update_function: object = learner.functions()[0]
        assert update_function._cache_size() == 1  # pyright: ignore[reportAttributeAccessIssue]

    def test_stops_before_the_step_that_is_not_finite(self):
        x, y = data(8)
        y[5] = np.nan
        plan = MinibatchPlan(np.arange(8, dtype=np.int32).reshape(4, 2), 4, 0, 8)
        params, extra = start()
        learner = Learner(squared_error, optax.scale_by_adam(), params)
        update = learner.learn(params, extra, padded(x, y, 8), plan, {"lr": 0.1, "weight": 1.0}, where="policy 'p'")

        params, extra = start()
        reference = Learner(squared_error, optax.scale_by_adam(), params)
        short = MinibatchPlan(plan.rows, 2, 0, 8)  # the first two steps alone
        expected = reference.learn(
            params, extra, padded(x, y, 8), short, {"lr": 0.1, "weight": 1.0}, where="policy 'p'"
        )
        for name, value in expected.params.items():
            np.testing.assert_array_equal(update.params[name], value)
        assert update.extra["steps"] == 2
        states = learner.optimizer_arrays(), reference.optimizer_arrays()
        assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])
        message = str(update.error)
        assert isinstance(update.error, NonFiniteError)
        assert "policy 'p', gradient step 2: the loss (loss), the gradient of b, the gradient of w" in message
        assert "columns ['y']" in message

    def test_a_gradient_without_a_bound_is_found_though_the_loss_has_one(self):
        def loss(params, extra, batch, mask, coefficients):
            # The slope of a square root at 0 is infinite.
            return jnp.sqrt(jnp.abs(params["w"])).sum() + masked_mean(batch["y"], mask), ({}, extra)

        params = {"w": jnp.zeros(2)}
        learner = Learner(loss, optax.scale_by_adam(), params)
        plan = MinibatchPlan.draw(np.random.default_rng(0), 2, 2, 2)
        update = learner.learn(params, {}, {"y": np.ones(2, np.float32)}, plan, {"lr": 0.1}, where="policy 'p'")
        assert "gradient step 0: the gradient of w" in str(update.error)
        np.testing.assert_array_equal(update.params["w"], 0)

    def test_applying_a_gradient_that_is_not_finite_changes_nothing(self):
        params, _ = start()
        learner = Learner(squared_error, optax.scale_by_adam(), params)
        bad = {"w": np.array([0, np.inf, 0], np.float32), "b": np.float32(0)}
        with pytest.raises(NonFiniteError, match=r"policy 'p', gradient step 0: the gradient of w"):
            learner.apply(params, bad, 0.1, where="policy 'p'")
        np.testing.assert_array_equal(params["b"], 0.25)
        assert learner.num_updates == 0

    def test_optimizer_state_goes_out_and_in(self):
        params, _ = start()
        learner, other = (Learner(squared_error, optax.scale_by_adam(), params) for _ in range(2))
        gradient = {"w": np.ones(3, np.float32), "b": np.float32(2)}
        moved = learner.apply(jax.tree.map(jnp.copy, params), gradient, 0.1, where="")
        other.set_optimizer_arrays(learner.optimizer_arrays(), where="")
        again = [one.apply(jax.tree.map(jnp.copy, moved), gradient, 0.1, where="") for one in (learner, other)]
        np.testing.assert_array_equal(again[0]["w"], again[1]["w"])
        with pytest.raises(CheckpointError, match=r"another optimizer(.|\n)*policy 'p'"):
            other.set_optimizer_arrays({"x": np.zeros(3)}, where="policy 'p'")
