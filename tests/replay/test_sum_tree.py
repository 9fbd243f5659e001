"""The sum tree against brute force: its weights, and draws by weight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax.replay.sum_tree import SumTree, _descend


class Parts:
    """Draws the same position inside each part."""

    def __init__(self, slot: float) -> None:
        self._slot = slot

    def random(self, count: int) -> np.ndarray:
        return np.full(count, self._slot)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 2048, 2049, 20_000])
def test_draws_by_hand(size: int):
    # Weights 1, 0, 3 at the first, the middle and the last slot: the range [0, 4) is cut into 4 parts, and 0.5, 1.5,
    # 2.5 and 3.5 select the first slot once and the last one three times.
    tree = SumTree(size)
    tree.set(np.array([size // 2]), 0.0)
    tree.set(np.array([0, size - 1]), np.array([1.0, 3.0]))
    expected = [0, *[size - 1] * 3] if size > 1 else [0] * 4
    assert tree.sample(4, Parts(0.5)).tolist() == expected
    assert tree.total == (4 if size > 1 else 3)  # the last of two weights of one slot counts


@given(
    size=st.sampled_from([3, 100, 3000, 17_000]),
    seed=st.integers(0, 10**6),
    changes=st.integers(1, 6),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_against_brute_force(size: int, seed: int, changes: int, scale: float):
    rng = np.random.default_rng(seed)
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(changes):
        positions = rng.integers(0, size, rng.integers(1, 50))
        values = np.where(rng.random(len(positions)) < 0.3, 0.0, rng.random(len(positions)) ** 4) * scale
        tree.set(positions, values)
        for position, value in zip(positions.tolist(), values.tolist(), strict=True):
            weights[position] = value
    np.testing.assert_array_equal(tree.leaves, weights)
    np.testing.assert_array_equal(tree.get(positions), weights[positions])
    np.testing.assert_allclose(tree.total, weights.sum(), rtol=1e-12)
    if not weights.any():
        return
    slot = rng.random()
    drawn = tree.sample(64, Parts(slot))
    assert (weights[drawn] > 0).all()
    # The position of each draw in the cumulative sum of all weights, up to rounding.
    sums = np.cumsum(weights)
    wanted = (np.arange(64) + slot) / 64 * sums[-1]
    slack = 1e-12 * sums[-1]
    assert (sums[drawn] > wanted - slack).all()
    assert (sums[drawn] - weights[drawn] <= wanted + slack).all()


@pytest.mark.parametrize("slot", [0.0, np.nextafter(1.0, 0.0)])
def test_the_ends_of_the_range_select_positive_weights(slot: float):
    # Zero weights at both ends of the tree.
    tree = SumTree(50_000)
    held = np.arange(20_007, 40_000, 3)
    tree.set(held, np.full(len(held), 1 / 3))
    for count in (1, 3, 1000):
        assert np.isin(tree.sample(count, Parts(slot)), held).all()


def test_rounding_does_not_select_beyond_the_last_weight():
    # A parent may be summed in another order than its children, so that the target may equal their whole sum.
    level = np.array([[0.0] * 8, [1.0, 2.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0]])
    for rest, child in ((0.0, 0), (1.0, 1), (3.0, 3), (np.nextafter(7.0, 0), 3), (7.0, 3), (7.5, 3)):
        nodes, left = _descend(level, np.array([1]), np.array([rest]))
        assert nodes.tolist() == [8 + child]
        assert 0 <= left[0] < level[1, child]


def test_rounding_errors_do_not_accumulate():
    rng = np.random.default_rng(0)
    tree = SumTree(10_000)
    tree.set(np.arange(10_000), 1.0)
    for _ in range(300):
        tree.set(rng.integers(0, 10_000, 100), rng.random(100) * 1e15)
    tree.set(np.arange(10_000), 0.1)
    assert abs(tree.total - 1000) < 1e-9
    tree.set(np.arange(10_000), 0.0)
    assert tree.total == 0
