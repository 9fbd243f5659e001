"""Discounted sums of rewards by slot, and their moments. With γ = 0.1 the sums can be read as digits."""

import numpy as np
import pytest

from rollax.batch import Fragment
from rollax.core.running_statistics import RunningStatistics, merged
from rollax.errors import CheckpointError, RollaxError
from rollax.policy.running_returns import RunningReturns


def fragment(slots, trajectories) -> Fragment:
    """Rows of these slots and trajectories, each of which is a segment."""
    ends = np.flatnonzero(np.append(np.diff(trajectories) != 0, True))
    return Fragment({"slot": np.array(slots), "trajectory_id": np.array(trajectories)}, ends, {})


FIRST = fragment([0, 0, 0, 1, 1, 0], [5, 5, 5, 6, 6, 7]), np.float32([1, 2, 3, 4, 5, 6])
SECOND = fragment([0, 1], [7, 8]), np.float32([7, 8])
# slot 0:  1, 2 + 0.1, 3 + 0.21, then the next trajectory with 6, 7;  slot 1:  4, 5 + 0.4, then the next one with 8
EPISODIC = [1, 2.1, 3.21, 4, 5.4, 6], [7.6, 8]
ENDLESS = [1, 2.1, 3.21, 4, 5.4, 6.321], [7.6321, 8.54]


class Recording(RunningReturns):
    """Keeps the rows of each update."""

    def update(self, rows):
        self.rows = np.sort(rows)
        super().update(rows)


@pytest.mark.parametrize(("episodic", "sums"), [(True, EPISODIC), (False, ENDLESS)])
def test_sums_by_hand(episodic, sums):
    returns = Recording(0.1, episodic=episodic)
    for (rows, rewards), expected in zip((FIRST, SECOND), sums, strict=True):
        returns.add_rewards(rows, rewards)
        np.testing.assert_allclose(returns.rows, np.sort(expected), rtol=1e-12)
    together = np.concatenate(sums)
    assert returns.count == 8
    np.testing.assert_allclose(returns.mean, together.mean(), rtol=1e-12)
    np.testing.assert_allclose(returns.deviation, together.std(), rtol=1e-7)


@pytest.mark.parametrize("episodic", [True, False])
def test_a_restored_process_goes_on_with_the_sums(episodic):
    returns, restored = (Recording(0.1, episodic=episodic) for _ in range(2))
    returns.add_rewards(*FIRST)
    restored.set_sums(returns.get_sums(), "acting")
    for one in (returns, restored):
        one.add_rewards(*SECOND)
    np.testing.assert_array_equal(restored.rows, returns.rows)


def test_frozen_returns_keep_no_sums():
    returns = RunningReturns(0.9)
    returns.frozen = True
    returns.add_rewards(*FIRST)
    assert returns.count == 0
    assert all(not len(column) for column in returns.get_sums().values())


def test_without_rows_nothing_changes():
    returns = RunningReturns(0.9)
    returns.add_rewards(FIRST[0][:0], np.empty(0, np.float32))
    assert returns.count == 0


def test_invalid_sums_and_rows_without_slots_are_refused():
    returns = RunningReturns(0.9)
    returns.add_rewards(*FIRST)
    state = returns.get_sums()
    for wrong in ({}, {**state, "sums": state["sums"][:-1]}, {**state, "slots": state["sums"]}):
        with pytest.raises(CheckpointError):
            RunningReturns(0.9).set_sums(wrong, "acting")
    with pytest.raises(RollaxError, match="slot"):
        returns.add_rewards(Fragment({"trajectory_id": np.array([5])}, [0], {}), np.float32([1]))


def test_the_largest_sum_of_all_processes():
    driver, *workers = (RunningReturns(0.1) for _ in range(3))
    together = [RunningStatistics({"~/returns/": one}) for one in (driver, *workers)]
    for worker, (rows, rewards) in zip(workers, (FIRST, SECOND), strict=True):
        worker.add_rewards(rows, -rewards)
    np.testing.assert_allclose([one.largest for one in workers], [6, 8])
    for worker in together[1:]:
        together[0].merge(worker.take_delta())
    np.testing.assert_allclose(driver.largest, 8)
    assert not driver.frozen
    workers[0].add_rewards(fragment([5], [9]), np.float32([20]))
    for worker in together[1:]:
        worker.sync(together[0].state())
    # The worker's own sum of 20 is in its next delta, and only there.
    np.testing.assert_allclose([one.largest for one in workers], [20, 8])
    first, second = together[1].take_delta(), together[2].take_delta()
    np.testing.assert_allclose([delta["~/returns/largest"] for delta in (first, second)], [20, 0])
    np.testing.assert_allclose(merged(second, first)["~/returns/largest"], 20)
    np.testing.assert_allclose(driver.summary()["largest"], 8)


def test_states_without_the_largest_sum_can_be_read():
    returns = RunningReturns(0.1)
    returns.add_rewards(*FIRST)
    statistics = RunningStatistics({"returns/": returns})
    state = {name: array for name, array in statistics.state().items() if not name.endswith("largest")}
    statistics.set_state(state)
    assert (returns.count, returns.largest) == (6, 0)


def test_rows_that_are_not_finite_change_nothing():
    returns = RunningReturns(0.1)
    with pytest.raises(RollaxError):
        returns.update([1.0, np.inf])
    assert (returns.count, returns.largest) == (0, 0)
