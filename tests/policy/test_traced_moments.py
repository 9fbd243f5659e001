"""Running statistics inside of compiled functions: those on the host, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.batch import SampleBatch
from rollax.core.running_statistics import RunningMoments
from rollax.policy.running_returns import RunningReturns
from rollax.policy.traced_moments import TracedMoments, TracedReturns

SLOTS = np.array([4, 6])


def rows_of(slots, trajectories, rewards):
    columns = {"slot": np.array(slots), "trajectory_id": np.array(trajectories)}
    return SampleBatch(columns), np.float32(rewards)


@pytest.mark.parametrize("episodic", [True, False])
def test_sums_of_rewards(episodic):
    # γ = 0.1. One sum of 10 so far, of trajectory 7 in slot 4, which ends with the second step.
    #   trajectory 7:           1 + 1 = 2, 2 + 0.2 = 2.2
    #   the one after it:       3, or 3.22 if the sums continue
    #   trajectory 8:           4, 5 + 0.4 = 5.4, 6 + 0.54 = 6.54
    returns = RunningReturns(0.1, episodic=episodic)
    returns.add_rewards(*rows_of([4], [7], [10]))
    rewards, over = jnp.float32([[1, 2, 3], [4, 5, 6]]), jnp.array([[False, True, False], [False, False, False]])
    first = TracedReturns.of(returns, SLOTS, np.array([7, 8]))
    found = jax.jit(TracedReturns.with_rewards)(first, rewards, over & episodic, 0.1)
    last = 3.0 if episodic else 3.22
    np.testing.assert_allclose(found.sums, [last, 6.54], rtol=1e-6)
    sums = [10, 2, 2.2, last, 4, 5.4, 6.54]
    expected = {"mean": np.mean(sums), "deviation": np.std(sums), "largest": 10}
    summary = found.summary()
    assert summary.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(summary[name], value, rtol=1e-6)
    returns.add_rewards(*rows_of([4, 4, 4, 6, 6, 6], [7, 7, 9, 8, 8, 8], [1, 2, 3, 4, 5, 6]))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), returns.summary(), summary)
    np.testing.assert_allclose(TracedReturns.of(returns, SLOTS, np.array([9, 8])).sums, found.sums, rtol=1e-6)


def test_other_trajectories_begin_at_zero():
    returns = RunningReturns(0.1)
    returns.add_rewards(*rows_of([4, 6], [7, 8], [10, 20]))
    np.testing.assert_array_equal(TracedReturns.of(returns, SLOTS, np.array([7, 9])).sums, [10, 0])


def test_moments_of_counted_rows():
    # 1, 2, 6: mean 3, variance (4 + 1 + 9) / 3. The row 100 does not count.
    moments = RunningMoments((1,))
    assert float(TracedMoments.of(moments).deviation[0]) == 1
    moments.update([[1.0]])
    found = TracedMoments.of(moments).with_rows(jnp.float32([[2], [100], [6]]), jnp.array([True, False, True]))
    np.testing.assert_allclose([found.count, found.mean[0], found.variance[0]], [3, 3, 14 / 3], rtol=1e-6)
