"""`MixedReplay`: rows of several buffers by weight, and their priorities."""

import numpy as np
import pytest

from rollax.batch import Fragment
from rollax.errors import BatchError
from rollax.policy.replayed import Draw
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.mixed import MixedReplay, Part
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay


def filled(kind=UniformReplay, first=0, rows=10, **settings):
    buffer = kind(100, **settings)
    if rows:
        columns = {
            "obs": first + np.arange(rows),
            "actions": np.zeros(rows, np.int64),
            "rewards": np.ones(rows, np.float32),
            "terminateds": np.arange(rows) == rows - 1,
            "truncateds": np.zeros(rows, bool),
            "trajectory_id": np.zeros(rows, np.int64),
        }
        buffer.add(Fragment(columns, [rows - 1], {"obs": np.zeros(1, np.int64)}))
    return buffer


def rng():
    return np.random.default_rng(0)


def test_rows_are_drawn_by_weight_in_random_order():
    mixed = MixedReplay([Part(filled(), 1.0), Part(filled(first=100), 3.0), Part(filled(rows=0), 5.0)])
    assert len(mixed) == 20
    second = mixed.sample(4000, rng())["obs"] >= 100
    assert abs(second.mean() - 0.75) < 0.03
    assert abs(second[:200].mean() - 0.75) < 0.1  # minibatches are consecutive parts
    assert [part.drawn for part in mixed.parts] == [4000 - second.sum(), second.sum(), 0]


def test_a_single_buffer_with_rows_is_drawn_directly():
    mixed = MixedReplay([Part(filled(rows=0), 1.0), Part(filled(), 0.1)])
    ours, theirs = mixed.sample(20, rng()), filled().sample(20, rng())
    np.testing.assert_array_equal(ours["obs"], theirs["obs"])


def test_batches_are_prepared():
    def prepared(batch):
        batch["obs"] = -batch["obs"]
        return batch

    mixed = MixedReplay([Part(filled(first=1), 1.0, prepared), Part(filled(first=100), 1.0)])
    drawn = mixed.sample(50, rng())["obs"]
    assert ((drawn < 0) | (drawn >= 100)).all()
    assert (drawn < 0).any()


def test_sequences():
    mixed = MixedReplay([Part(filled(), 1.0), Part(filled(first=100), 1.0)])
    drawn = mixed.sample(30, rng(), draw=SequenceDraw(4))
    assert len(drawn["seq_lens"]) == 30
    obs = drawn["obs"].reshape(30, 5)
    for row, length in zip(obs, drawn["seq_lens"], strict=True):
        assert (np.diff(row[:length]) == 1).all()  # each sequence is of one buffer
    assert {bool(row[0] >= 100) for row in obs} == {False, True}
    assert sum(part.drawn for part in mixed.parts) == np.count_nonzero(drawn["weights"])


@pytest.mark.parametrize("length", [None, 5])
def test_errors_update_the_buffer_of_their_rows(length):
    # Two sequences of five rows in each buffer have the error of their first row.
    draw = Draw() if length is None else SequenceDraw(length)
    parts = [filled(PrioritizedReplay, alpha=1.0, eps=1e-9), filled(PrioritizedReplay, 100, alpha=1.0, eps=1e-9)]
    mixed = MixedReplay([Part(part, 1.0) for part in parts])
    drawn = mixed.sample(400, rng(), draw=draw)
    mixed.update_priorities(drawn["indices"], drawn["obs"].reshape(400, -1)[:, 0] + 1.0)
    expected = np.arange(10) if length is None else np.repeat([0, 5], 5)
    for part, first in zip(parts, (0, 100), strict=True):
        np.testing.assert_allclose(part._tree.get(np.arange(10)), first + expected + 1)


def test_nothing_to_draw():
    with pytest.raises(BatchError, match="nothing to draw"):
        MixedReplay([Part(filled(rows=0), 1.0), Part(filled(), 0.0)]).sample(1, rng())
