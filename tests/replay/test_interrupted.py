"""An interrupt at any line of adding or of a priority update leaves only correct transitions."""

import copy

import numpy as np
import pytest

from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.sum_tree import SumTree
from tests.interrupting import Interrupts
from tests.replay.reference import DrawsAll, everything
from tests.replay.streams import TrajectoryStream, batch_of


class DrawsEach(DrawsAll, PrioritizedReplay):
    """Draws each transition once."""


def rows_of(drawn):
    """Action -> the rest of the transition; each row of a stream has a unique action."""
    names = ("obs", "rewards", "new_obs", "discounts")
    parts = {name: [np.asarray(value).tobytes() for value in drawn[name]] for name in names}
    # The next observation of a terminal step is arbitrary.
    for row, discount in enumerate(np.asarray(drawn["discounts"])):
        if discount == 0:
            parts["new_obs"][row] = b""
    return {action: tuple(parts[n][row] for n in names) for row, action in enumerate(drawn["actions"].tolist())}


@pytest.mark.long
@pytest.mark.parametrize("stack", [1, 2])
def test_adding(stack):
    trajectories = TrajectoryStream(2, np.random.default_rng(0), stack=stack)
    batches = [batch_of(trajectories.fragment(4)) for _ in range(11)]
    frames = None if stack == 1 else StackedFrames(stack)
    whole = DrawsEach(10_000, gamma=0.5, n_step=3, frames=frames)
    for batch in batches:
        whole.add(batch)
    true = rows_of(everything(whole))
    before = DrawsEach(40, gamma=0.5, n_step=3, frames=frames)
    for batch in batches[:8]:
        before.add(batch)
    kept = rows_of(everything(before))
    interrupts, line = Interrupts("replay"), 0
    while True:
        buffer = copy.deepcopy(before)
        if not interrupts.at(line, lambda: buffer.add(batches[8])):  # noqa: B023
            break
        for batch in [None, *batches[9:11]]:
            if batch is not None:
                buffer.add(batch)
            found = rows_of(everything(buffer))
            assert found.items() <= true.items(), interrupts.place
            np.testing.assert_array_equal(buffer._tree.leaves > 0, buffer._drawable)
            assert len(buffer) == len(found)
            np.testing.assert_allclose(buffer.total_priority, buffer._tree.leaves.sum())
            if batch is None:
                # Only rows that the batch overwrites, or that wait for its rows, may be missing.
                assert len(kept.keys() - found.keys()) <= batches[8].count + stack
        again = DrawsEach(40, gamma=0.5, n_step=3, frames=frames)
        again.set_state(buffer.get_state())
        assert rows_of(everything(again)) == found
        line += 1
    assert line > 50


def test_a_sum_tree():
    interrupts, line = Interrupts("replay"), 0
    while True:
        tree = SumTree(20_000)
        tree.set(np.arange(20_000), 1.0)
        if not interrupts.at(line, lambda: tree.set(np.arange(100, 200), 3.0)):  # noqa: B023
            break
        assert tree.total == tree.leaves.sum()
        assert len(tree.sample(64, np.random.default_rng(0))) == 64
        line += 1
    assert line > 5
