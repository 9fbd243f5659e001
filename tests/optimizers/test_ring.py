"""`Ring`: transitions of n steps from a ring of rows on the device, with each form of its observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import CheckpointError
from rollax.optimizers.ring import Ring, Steps
from rollax.optimizers.ring_observations import ObservationPairs, ObservationsOnce

G = 0.5


@pytest.fixture(params=["pairs", "once"])
def make(request):
    """A function, (C, n) -> ring; steps are put two at a time where the observations are stored once."""

    def ring(steps, n_step, places=1):
        if request.param == "pairs":
            return Ring(steps, n_step, G, ObservationPairs(steps))
        return Ring(steps, n_step, G, ObservationsOnce(steps, places, 2, n_step))

    return ring


def steps_of(rewards, terminated=(), truncated=(), places=1, first=0):
    """Steps [T, places] whose observation is the number of the step, and 100 more at the end of an episode."""
    steps = len(rewards)
    flags = [np.zeros((steps, places), bool) for _ in range(2)]
    for flag, at in zip(flags, (terminated, truncated), strict=True):
        flag[list(at)] = True
    number = first + np.repeat(np.arange(steps, dtype=np.float32)[:, None], places, axis=1)
    reward = np.repeat(np.float32(rewards)[:, None], places, axis=1)
    after = number + np.where(flags[0] | flags[1], 100, 1).astype(np.float32)
    return Steps(*map(jnp.asarray, (number, number.astype(np.int32), reward, *flags, after)))


def filled(ring, steps, taken=0, rows=None):
    """The rows after these steps, put two at a time."""
    rows = ring.empty(steps) if rows is None else rows
    put = jax.jit(ring.put)
    for at in range(0, len(steps.rewards), 2):
        rows = put(rows, jax.tree.map(lambda leaf: leaf[at : at + 2], steps), jnp.int32(taken + at))  # noqa: B023
    return rows


def drawn(ring, rows, steps):
    found = ring.transitions(rows, jnp.asarray(steps, jnp.int32), jnp.zeros(len(steps), jnp.int32))
    return [np.asarray(found[name]).tolist() for name in ("obs", "rewards", "discounts", "new_obs")]


@pytest.mark.short("pairs")
def test_windows_end_with_the_episode(make):
    ring = make(6, 3)
    rows = filled(ring, steps_of([1, 2, 4, 8, 16, 32], terminated=[2], truncated=[4]))
    # From 0: 1 + 2/2 + 4/4, then the end; from 2: 4; from 3: 8 + 16/2, and the value after the truncation counts 1/4.
    assert drawn(ring, rows, [0, 2, 3, 4]) == [[0, 2, 3, 4], [3, 4, 16, 16], [0, 0, 0.25, 0.5], [102, 102, 104, 104]]


@pytest.mark.short("pairs")
def test_windows_of_a_running_episode(make):
    ring = make(6, 2)
    rows = filled(ring, steps_of([1, 2, 4, 8, 16, 32]))
    assert drawn(ring, rows, [0, 4]) == [[0, 4], [2, 32], [0.25, 0.25], [2, 6]]


@pytest.mark.short("pairs")
def test_new_steps_replace_the_oldest_ones(make):
    ring = make(4, 2)
    rows = filled(ring, steps_of([1, 2, 3, 4, 5, 6], truncated=[4]))
    assert np.asarray(rows.rewards)[:, 0].tolist() == [5, 6, 3, 4]
    assert (ring.first_drawable(6), ring.drawable(6, rows)) == (2, 3)
    # Step 3 has the row 3, and the step after it the row 0.
    assert drawn(ring, rows, [2, 3, 4]) == [[2, 3, 4], [5, 6.5, 5], [0.25, 0.25, 0.5], [4, 104, 104]]


def test_only_steps_with_all_rewards_are_drawn(make):
    ring = make(8, 3)
    assert [ring.drawable(taken) for taken in (0, 2, 3, 4, 8, 11)] == [0, 0, 1, 2, 6, 6]
    found = ring.draw(np.random.default_rng(0), 11, 2000, 3)
    assert set(found[:, 0].tolist()) == {3, 4, 5, 6, 7, 8}
    assert set(found[:, 1].tolist()) == {0, 1, 2}
    # Each of 18 is drawn with 1/18; the standard deviation of a share is 0.005.
    shares = np.unique(found, axis=0, return_counts=True)[1] / 2000
    np.testing.assert_allclose(shares, 1 / 18, atol=0.025)


@pytest.mark.short("pairs")
def test_no_window_reaches_beyond_a_restart(make):
    ring = make(6, 3)
    rows = ring.cut(filled(ring, steps_of([1, 2])), jnp.int32(2))
    rows = filled(ring, steps_of([4, 8, 16, 32], first=50), 2, rows)
    assert drawn(ring, rows, [0, 1, 2]) == [[0, 1, 50], [2, 2, 12], [0.25, 0.5, 0.125], [2, 2, 53]]


@pytest.mark.short("pairs")
def test_an_episode_that_has_ended_keeps_its_last_observation_in_a_restart(make):
    ring = make(6, 1, places=2)
    steps = steps_of([1, 2, 4, 8], places=2)
    over = np.zeros((4, 2), bool)
    over[3, 0] = True
    steps = steps._replace(truncated=jnp.asarray(over), new_obs=steps.new_obs.at[3, 0].set(103))
    rows = ring.cut(filled(ring, steps), jnp.int32(4))
    rows = filled(ring, steps_of([16, 32], first=50, places=2), 4, rows)
    _, after = ring.observed(rows, *[jnp.int32([3, 3])] * 2, jnp.int32([0, 1]))
    assert np.asarray(after).tolist() == [103, 4]


@pytest.mark.short("pairs")
def test_stored_rows_come_back(make):
    ring = make(6, 1, places=2)
    rows = filled(ring, steps_of([1, 2, 4, 8], terminated=[1], places=2))
    state = ring.stored(rows, 4)
    again = ring.restored(rows_like(), state, 4, "here")
    assert drawn(ring, again, [0, 1, 2, 3]) == drawn(ring, rows, [0, 1, 2, 3])
    assert np.asarray(again.rewards)[4:].max() == 0
    for wrong in ({**state, "0": state["0"][:2]}, {**state, "2": state["2"].astype(np.float64)}, {}):
        with pytest.raises(CheckpointError):
            ring.restored(rows_like(), wrong, 4, "here")
    more = steps_of([16, 32, 64, 128], truncated=[2], places=2, first=4)
    jax.tree.map(
        np.testing.assert_array_equal,
        drawn(ring, filled(ring, more, 4, again), [2, 3, 5, 6]),
        drawn(ring, filled(ring, more, 4, rows), [2, 3, 5, 6]),
    )


def rows_like():
    return steps_of([0, 0], places=2)


def test_bytes():
    like = steps_of([0, 0], places=5)
    # Two float32 observations, an int32 action, a float32 reward and two flags, of 5 places and 80 steps.
    assert Ring(80, 1, G, ObservationPairs(80)).bytes_of(like) == 80 * 5 * (4 + 4 + 4 + 4 + 1 + 1)
    once = ObservationsOnce(80, 5, 2, 1)
    # The observations of 82 steps and of the ends of 100 episodes; for each row the slot of its last one and an age;
    # the number of ended episodes for each step and in all, the first step, and the next age of each place.
    assert once.last_ones == 100
    rows = 80 * 5 * (4 + 4 + 1 + 1 + 4 + 1)
    assert Ring(80, 1, G, once).bytes_of(like) == (82 * 5 + 100) * 4 + rows + 80 * 4 + 4 + 4 + 5
