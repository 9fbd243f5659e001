"""The plan of minibatches, and the sizes to which batches are padded."""

import numpy as np
import pytest

from rollax.policy.update_plan import Minibatches, acting_bucket, training_bucket


class TestPlan:
    @pytest.mark.parametrize(("rows", "size", "epochs"), [(1, 4, 2), (4, 4, 3), (5, 4, 3), (100, 32, 2), (130, 128, 3)])
    def test_every_row_once_in_every_epoch(self, rows, size, epochs):
        plan = Minibatches.draw(np.random.default_rng(0), rows, size, epochs)
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
            padding = steps.ravel()[rows:]
            assert (padding < 0).all()
            # As an index, padding takes the first rows of the epoch.
            assert np.arange(plan.capacity)[padding].tolist() == np.resize(orders[-1], len(padding)).tolist()
        assert (plan.rows[plan.steps :] < 0).all()
        if rows > 4:
            assert not np.array_equal(orders[0], orders[1])

    def test_the_whole_batch_in_its_own_order(self):
        plan = Minibatches.draw(np.random.default_rng(0), 33, None, 1)
        assert plan.rows.shape == (1, 40)
        assert plan.capacity == 40
        np.testing.assert_array_equal(plan.rows[0], [*range(33), *range(-40, -33)])

    def test_in_order(self):
        random = np.random.default_rng(0)
        plan = Minibatches.draw(random, 5, 2, 2, in_order=True)
        assert plan.rows.tolist() == [[0, 1], [2, 3], [4, -5]] * 2
        assert random.random() == np.random.default_rng(0).random()

    def test_shape_depends_on_the_bucket_only(self):
        random = np.random.default_rng(0)
        shapes = {Minibatches.draw(random, rows, 32, 3).rows.shape for rows in range(113, 129)}
        assert shapes == {(12, 32)}

    @pytest.mark.parametrize(("size", "shape"), [(5, (4, 3, 2)), (None, (1, 5, 2)), (4, (6, 2, 2)), (2, (10, 2))])
    def test_microbatches_are_consecutive_parts_of_a_minibatch(self, size, shape):
        # 9 rows, padded to 10; minibatches of 5 have three parts of 2, one of them half full.
        plan, whole = (
            Minibatches.draw(np.random.default_rng(0), 9, size, 1 if size is None else 2, microbatch_size=micro)
            for micro in (2, None)
        )
        epochs = 1 if size is None else 2
        assert plan.rows.shape == (shape[0], *shape[1:])
        assert (plan.steps, plan.last_epoch, plan.capacity) == (whole.steps, whole.last_epoch, whole.capacity)
        parts = plan.rows.reshape(len(plan.rows), -1)
        np.testing.assert_array_equal(parts[:, : whole.rows.shape[1]], whole.rows)
        assert (parts[:, whole.rows.shape[1] :] < 0).all()
        assert (np.bincount(parts[parts >= 0]) == epochs).all()

    def test_divisible_plans_hold_the_same_rows(self):
        plan = Minibatches.draw(np.random.default_rng(0), 13, 5, 2)
        wider = plan.divisible(4)
        assert (wider.capacity, wider.steps, wider.last_epoch) == (16, plan.steps, plan.last_epoch)
        assert plan.capacity == 14
        of_capacity = np.where(plan.rows < 0, plan.rows - 2, plan.rows)  # the same rows, from the end of 16
        np.testing.assert_array_equal(wider.rows[:, :5], of_capacity)
        assert (wider.rows[:, 5:] < 0).all()
        np.testing.assert_array_equal(wider.rows[:, 5:] % 16, of_capacity[:, :3] % 16)
        parts = Minibatches.draw(np.random.default_rng(0), 13, 5, 2, microbatch_size=3).divisible(4)
        assert parts.rows.shape == (6, 2, 4)
        assert (parts.rows[..., 3] < 0).all()


def test_buckets():
    assert [acting_bucket(rows) for rows in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]
    rows, buckets = (1, 3, 8, 9, 11, 17, 33, 100, 112, 113, 4000), (1, 3, 8, 10, 12, 20, 40, 112, 112, 128, 4096)
    assert tuple(map(training_bucket, rows)) == buckets
    for rows in range(1, 3000):
        assert rows <= training_bucket(rows) <= 1.25 * rows + 1
    assert len({training_bucket(rows) for rows in range(1025, 4097)}) == 8
