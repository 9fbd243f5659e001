"""`RingPriorities`: draws in proportion to priorities, on the device."""

import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import CheckpointError
from rollax.optimizers.ring import Priorities, Ring, RingPriorities
from rollax.optimizers.ring_observations import ObservationPairs


@pytest.fixture
def make():
    """Priorities of a ring of 4 steps and 2 trajectories, with windows of 2 steps."""
    return lambda **keys: RingPriorities(
        Ring(4, 2, 0.9, ObservationPairs(4)), 2, **{"alpha": 0.5, "beta": 0.4, "eps": 0.1, **keys}
    )


def all_ones(priorities):
    return priorities.empty()._replace(powers=jnp.ones((4, 2)))


@pytest.mark.long
def test_draws_are_in_proportion_to_the_priorities(make):
    """After 5 steps the ring has the steps 1 to 4, in the rows 1, 2, 3, 0; step 4 lacks its second reward."""
    priorities = make()
    powers = np.zeros((4, 2), np.float32)
    powers[1], powers[2], powers[3], powers[0] = [1, 0], [2, 3], [0, 4], [100, 100]
    drawn = priorities.draw(np.random.default_rng(0), 4000, 4096)
    found = priorities.drawn(Priorities(jnp.asarray(powers), jnp.float32(1)), drawn, 4000, 5)
    steps, places, weights = (np.asarray(part)[:4000] for part in found)
    counts = {pair: int(np.sum((steps == pair[0]) & (places == pair[1]))) for pair in zip(steps, places, strict=True)}
    # One draw in each 4000th of the sum.
    chances = {(1, 0): 1, (2, 0): 2, (2, 1): 3, (3, 1): 4}
    assert counts == {pair: pytest.approx(400 * p, abs=1) for pair, p in chances.items()}
    of_pair = {(1, 0): 1.0, (2, 0): 0.5**0.4, (2, 1): (1 / 3) ** 0.4, (3, 1): 0.25**0.4}
    expected = [of_pair[pair] for pair in zip(steps.tolist(), places.tolist(), strict=True)]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_the_order_of_draws_is_random(make):
    steps = make().drawn(all_ones(make()), make().draw(np.random.default_rng(0), 64, 64), 64, 4)[0]
    assert (np.diff(np.asarray(steps)) < 0).any()


def test_steps_that_were_never_taken_are_not_drawn(make):
    steps, _, _ = make().drawn(all_ones(make()), make().draw(np.random.default_rng(0), 64, 64), 64, 3)
    assert set(np.asarray(steps).tolist()) == {0, 1}


def test_steps_before_the_first_one_with_all_observations_are_not_drawn(make):
    steps, _, _ = make().drawn(all_ones(make()), make().draw(np.random.default_rng(0), 64, 64), 64, 6, 4)
    assert set(np.asarray(steps).tolist()) == {4}  # after 6 steps, 5 lacks its second reward


@pytest.mark.parametrize("number", [0.0, 1.0])
def test_rounding_selects_no_row_without_priority(make, number):
    powers = jnp.zeros((4, 2)).at[1, 1].set(0.3)
    steps, places, _ = make().drawn(Priorities(powers, jnp.float32(1)), np.full(2, number, np.float32), 2, 4)
    assert (np.asarray(steps).tolist(), np.asarray(places).tolist()) == ([1, 1], [1, 1])


def test_new_steps_get_the_largest_priority(make):
    found = make().put(make().empty()._replace(largest=jnp.float32(9)), 2, 6)
    np.testing.assert_allclose(found.powers, [[0, 0], [0, 0], [3, 3], [3, 3]])


def test_errors_become_priorities(make):
    """Of a row that was drawn twice the last error counts; rows beyond the count change nothing."""
    at = jnp.array([4, 1, 4, 2]), jnp.array([0, 1, 0, 0])
    found, fits = make().updated(all_ones(make()), at, jnp.array([8.0, -0.8, 3.9, 50.0]), 3)
    np.testing.assert_allclose(found.powers, [[2, 1], [1, 0.9**0.5], [1, 1], [1, 1]], rtol=1e-6)
    assert float(found.largest) == pytest.approx(8.1)
    assert bool(fits)


@pytest.mark.parametrize("error", [np.nan, np.inf])
def test_errors_that_are_not_finite_are_reported(make, error):
    at = jnp.array([0, 1]), jnp.array([0, 0])
    assert not make().updated(all_ones(make()), at, jnp.array([0.0, error]), 2)[1]
    assert make().updated(all_ones(make()), at, jnp.array([0.0, error]), 1)[1]


def test_a_checkpoint_has_the_priorities(make):
    before = Priorities(jnp.arange(8, dtype=jnp.float32).reshape(4, 2), jnp.float32(49))
    state = make().stored(before, 3)
    found = make().restored(state, 3, "here")
    np.testing.assert_array_equal(found.powers, [[0, 1], [2, 3], [4, 5], [0, 0]])
    assert float(found.largest) == 49
    squared = make(alpha=1.0).restored(state, 3, "here")
    np.testing.assert_allclose(squared.powers, [[0, 1], [4, 9], [16, 25], [0, 0]])
    uniform = make().restored({}, 3, "here")
    np.testing.assert_array_equal(uniform.powers, [[1, 1], [1, 1], [1, 1], [0, 0]])
    with pytest.raises(CheckpointError):
        make().restored(state, 4, "here")
    with pytest.raises(CheckpointError):
        make().restored({**state, "priorities": -state["priorities"]}, 3, "here")
