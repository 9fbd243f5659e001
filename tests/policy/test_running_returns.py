"""Discounted sums of rewards by slot, and their moments. With γ = 0.1 the sums can be read as digits."""

import numpy as np
import pytest

from rollax.batch import Fragment
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
