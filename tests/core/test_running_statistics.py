"""Running moments: by hand, and merged over processes; `tests/rollout/test_filters.py` merges filters."""

import numpy as np
import pytest

from rollax.core.running_statistics import RunningMoments, RunningStatistics
from rollax.errors import CheckpointError, NonFiniteError, ShapeError
from tests.env.refused import raised, refused


class TestMoments:
    def test_by_hand(self):
        # 1 and 3: mean 2, variance 1. Then 8 as well: mean 4, variance (9 + 1 + 16) / 3.
        moments = RunningMoments()
        moments.update([1, 3])
        assert (moments.count, moments.mean, moments.variance) == (2, 2, 1)
        moments.update(np.float32([8]))
        assert (moments.count, moments.mean) == (3, 4)
        np.testing.assert_allclose([moments.variance, moments.deviation**2], 26 / 3, rtol=1e-7)

    def test_each_element_has_its_own(self):
        moments = RunningMoments((2, 1))
        moments.update([[[1], [5]], [[3], [5]]])
        np.testing.assert_array_equal(moments.mean, [[2], [5]])
        np.testing.assert_array_equal(moments.variance, [[1], [0]])
        np.testing.assert_allclose(moments.deviation, [[1], [1e-8]], rtol=1e-7)

    def test_with_fewer_than_two_rows_the_deviation_is_1(self):
        moments = RunningMoments((3,))
        for rows in ([], [[7, 8, 9]]):
            moments.update(np.reshape(rows, (-1, 3)))
            np.testing.assert_array_equal(moments.deviation, [1, 1, 1])
            np.testing.assert_array_equal(moments.variance, [0, 0, 0])
        assert moments.count == 1

    def test_frozen_moments_do_not_change(self):
        moments = RunningMoments()
        moments.frozen = True
        moments.update([1, 2])
        assert moments.count == 0

    @pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
    def test_rows_that_are_not_finite_are_refused_without_a_change(self, bad):
        moments = RunningMoments()
        moments.update([1, 3])
        refused(NonFiniteError, moments.update, [0, bad])
        assert (moments.count, moments.mean, moments.variance) == (2, 2, 1)

    @pytest.mark.parametrize("rows", [np.zeros((4, 2)), np.zeros(3), np.float64(1)])
    def test_rows_of_another_shape_are_refused(self, rows):
        raised(ShapeError, RunningMoments((3,)).update, rows)


class TestStatistics:
    def made(self):
        moments = {"": RunningMoments((2,)), "~/bonuses/": RunningMoments()}
        return RunningStatistics(moments), moments

    def test_two_processes_together_have_the_statistics_of_one(self):
        # Rows 1, 3 in one process and 8 in another, as in the test by hand.
        (driver, merged), (first, ours), (second, theirs) = self.made(), self.made(), self.made()
        ours["~/bonuses/"].update([1, 3])
        theirs["~/bonuses/"].update([8])
        theirs[""].update([[1, 2]])
        for worker in (first, second):
            driver.merge(worker.take_delta())
        assert (merged["~/bonuses/"].count, merged["~/bonuses/"].mean) == (3, 4)
        np.testing.assert_allclose(merged["~/bonuses/"].variance, 26 / 3, rtol=1e-12)
        assert merged[""].count == 1
        assert driver.take_delta()["~/bonuses/count"] == 0  # which its own rows alone are in
        ours["~/bonuses/"].update([4])  # not sent yet
        first.sync(driver.state())
        assert (ours["~/bonuses/"].count, ours["~/bonuses/"].mean) == (4, 4)
        assert first.take_delta()["~/bonuses/count"] == 1

    def test_a_state_of_other_names_or_shapes_is_refused(self):
        state = self.made()[0].state()
        assert state.keys() == {f"{name}{part}" for name in ("", "~/bonuses/") for part in ("count", "mean", "squares")}
        for other in ({"": RunningMoments((2,))}, {"": RunningMoments(), "~/bonuses/": RunningMoments()}):
            refused(CheckpointError, RunningStatistics(other).set_state, state)

    @pytest.mark.parametrize("value", [-7, np.nan, np.inf])
    @pytest.mark.parametrize("part", ["count", "mean", "squares"])
    def test_an_impossible_state_is_refused(self, part, value):
        driver, moments = self.made()
        moments["~/bonuses/"].update([1, 3])
        before = driver.state()
        forged = {**before, f"~/bonuses/{part}": np.array(value)}
        if (part, value) == ("mean", -7):  # means may be negative
            driver.set_state(forged)
            assert moments["~/bonuses/"].mean == -7
            return
        refused(CheckpointError, driver.set_state, forged, says=f"~/bonuses/{part}")
        np.testing.assert_equal(driver.state(), before)
