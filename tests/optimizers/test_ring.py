"""`Ring`: transitions of n steps from a ring of rows on the device."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import CheckpointError
from rollax.optimizers.ring import Ring, Rows

G = 0.5


def rows_of(rewards, terminated=(), truncated=(), places=1):
    """Rows [T, places] whose observation is the number of the step, and 100 more after it."""
    steps = len(rewards)
    flags = [np.zeros((steps, places), bool) for _ in range(2)]
    for flag, at in zip(flags, (terminated, truncated), strict=True):
        flag[list(at)] = True
    number = np.repeat(np.arange(steps, dtype=np.float32)[:, None], places, axis=1)
    reward = np.repeat(np.float32(rewards)[:, None], places, axis=1)
    return Rows(*map(jnp.asarray, (number, number.astype(np.int32), reward, *flags, number + 100)))


def drawn(ring, rows, steps):
    found = ring.transitions(rows, jnp.asarray(steps, jnp.int32), jnp.zeros(len(steps), jnp.int32))
    return [np.asarray(found[name]).tolist() for name in ("obs", "rewards", "discounts", "new_obs")]


def test_windows_end_with_the_episode():
    ring = Ring(6, 3, G)
    rows = rows_of([1, 2, 4, 8, 16, 32], terminated=[2], truncated=[4])
    # From 0: 1 + 2/2 + 4/4, then the end; from 2: 4; from 3: 8 + 16/2, and the value after the truncation counts 1/4.
    assert drawn(ring, rows, [0, 2, 3, 4]) == [[0, 2, 3, 4], [3, 4, 16, 16], [0, 0, 0.25, 0.5], [102, 102, 104, 104]]


def test_windows_of_a_running_episode():
    ring = Ring(6, 2, G)
    rows = rows_of([1, 2, 4, 8, 16, 32])
    assert drawn(ring, rows, [0, 4]) == [[0, 4], [2, 32], [0.25, 0.25], [101, 105]]


def test_new_steps_replace_the_oldest_ones():
    ring = Ring(4, 2, G)
    rows = ring.empty(rows_of([0, 0]))
    for taken, rewards in ((0, [1, 2]), (2, [3, 4]), (4, [5, 6])):
        new = rows_of(rewards)
        rows = ring.put(rows, new._replace(obs=new.obs + taken, new_obs=new.new_obs + taken), taken)
    assert np.asarray(rows.rewards)[:, 0].tolist() == [5, 6, 3, 4]
    assert (ring.first_drawable(6), ring.drawable(6)) == (2, 3)
    # Step 3 has the row 3, and the step after it the row 0.
    assert drawn(ring, rows, [3, 4]) == [[3, 4], [6.5, 8], [0.25, 0.25], [104, 105]]


def test_only_steps_with_all_rewards_are_drawn():
    ring = Ring(8, 3, G)
    assert [ring.drawable(taken) for taken in (0, 2, 3, 4, 8, 11)] == [0, 0, 1, 2, 6, 6]
    found = ring.draw(np.random.default_rng(0), 11, 2000, 3)
    assert set(found[:, 0].tolist()) == {3, 4, 5, 6, 7, 8}
    assert set(found[:, 1].tolist()) == {0, 1, 2}
    # Each of 18 is drawn with 1/18; the standard deviation of a share is 0.005.
    shares = np.unique(found, axis=0, return_counts=True)[1] / 2000
    np.testing.assert_allclose(shares, 1 / 18, atol=0.025)


def test_no_window_reaches_beyond_a_restart():
    ring = Ring(6, 3, G)
    rows = ring.cut(rows_of([1, 2, 4, 8, 16, 32]), 2)  # after the steps 0 and 1
    assert drawn(ring, rows, [0, 1, 2]) == [[0, 1, 2], [2, 2, 12], [0.25, 0.5, 0.125], [101, 101, 104]]


def test_stored_rows_come_back():
    ring = Ring(6, 1, G)
    rows = rows_of([1, 2, 4, 0, 0, 0], terminated=[1], places=2)
    state = ring.stored(rows, 3)
    again = ring.restored(rows, state, 3, "here")
    assert drawn(ring, again, [0, 1, 2]) == drawn(ring, rows, [0, 1, 2])
    assert np.asarray(again.obs)[3:].max() == 0
    for wrong in ({**state, "0": state["0"][:2]}, {**state, "2": state["2"].astype(np.float64)}, {}):
        with pytest.raises(CheckpointError):
            ring.restored(rows, wrong, 3, "here")


def test_bytes_of_a_step():
    # Two float32 observations, an int32 action, a float32 reward and two flags, of 5 places.
    assert Ring.bytes_of(rows_of([0], places=5)) == 5 * (4 + 4 + 4 + 4 + 1 + 1)
