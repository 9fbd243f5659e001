"""`ObservationsOnce` reads what `ObservationPairs` reads, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax.core.spaces import stack
from rollax.env.stacking import begun, pushed
from rollax.optimizers.ring import Ring, Steps
from rollax.optimizers.ring_observations import ObservationPairs, ObservationsOnce

STEPS, PLACES, LENGTH = 12, 3, 2
IMAGE = spaces.Box(0, 255, (3, 4), np.uint8)
PARTS = spaces.Dict(
    {
        "image": spaces.Box(-1, 1, (5, 5, 2), np.float32),
        "number": spaces.Discrete(7),
        "action_mask": spaces.MultiBinary(2),
    }
)


class Player:
    """Plays episodes of random observations and lengths.

    Args:
        space: of single observations.
        count: the number of them in a stack.
        ends: the probability that an episode ends with a step.
    """

    def __init__(self, space, count, ends, seed=0):
        self._space, self._count, self._ends = space, count, ends
        self._rng = np.random.default_rng(seed)
        space.seed(seed)
        self.restart()

    def restart(self):
        """Begins all episodes."""
        self._obs = self._begun()

    def steps(self):
        """The next steps, [T, R, ...]."""
        return jax.tree.map(lambda *parts: np.stack(parts), *[self._step() for _ in range(LENGTH)])

    def _step(self):
        obs, after, begun = self._obs, self._pushed(), self._begun()
        over = self._rng.random(PLACES) < self._ends
        terminated = over & (self._rng.random(PLACES) < 0.5)

        def chosen(after, begun):
            return np.where(over.reshape(-1, *[1] * (after.ndim - 1)), begun, after)

        self._obs = jax.tree.map(chosen, after, begun)
        rewards = self._rng.random(PLACES, np.float32)
        return Steps(obs, np.arange(PLACES, dtype=np.int32), rewards, terminated, over & ~terminated, after)

    def _sampled(self):
        obs = stack(self._space, [self._space.sample() for _ in range(PLACES)])
        return jax.tree.map(lambda leaf: leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype)), obs)

    def _begun(self):
        obs = self._sampled()
        return obs if self._count == 1 else begun(self._space, self._count, obs)

    def _pushed(self):
        obs = self._sampled()
        return obs if self._count == 1 else pushed(self._space, self._count, self._obs, obs)


def rings(n_step, space, count):
    """Rings that store observations in pairs, and once."""
    frames = (1, None) if count == 1 else (count, space)
    once = ObservationsOnce(STEPS, PLACES, LENGTH, n_step, *frames)
    return Ring(STEPS, n_step, 0.9, ObservationPairs(STEPS)), Ring(STEPS, n_step, 0.9, once)


def windows(transitions, first, steps):
    """The windows of all trajectories from `steps` steps on; the first one again in the place of others."""
    step = first + np.arange(STEPS) % max(steps, 1)
    step, place = (part.ravel() for part in np.meshgrid(np.int32(step), np.arange(PLACES, dtype=np.int32)))
    return transitions(step, place)


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.short("space0-1-1-0.1")
@pytest.mark.parametrize(
    ("space", "count", "n_step", "ends"),
    [(IMAGE, 1, 1, 0.1), (PARTS, 1, 3, 0.05), (IMAGE, 4, 3, 0.1), (PARTS, 3, 1, 0.3), (IMAGE, 14, 3, 0.02)],
)
def test_windows_are_those_of_pairs(space, count, n_step, ends):
    """All windows after each put, over several rounds of the ring, with restarts at any time."""
    pairs, once = rings(n_step, space, count)
    player, rng = Player(space, count, ends), np.random.default_rng(1)
    like = player.steps()
    kept = [ring.empty(like) for ring in (pairs, once)]
    player.restart()
    names = ("put", "cut", "transitions")
    puts, cuts, reads = ([jax.jit(getattr(ring, name)) for ring in (pairs, once)] for name in names)
    ended = np.zeros(0, int)  # episodes that ended with each step
    for taken in range(0, 5 * STEPS, LENGTH):
        new, after = player.steps(), taken + LENGTH
        kept = [put(rows, new, np.int32(taken)) for put, rows in zip(puts, kept, strict=True)]
        ended = np.append(ended, (new.terminated | new.truncated).sum(axis=1))
        if rng.random() < 0.1:
            player.restart()
            kept = [cut(rows, np.int32(after)) for cut, rows in zip(cuts, kept, strict=True)]
            ended[-1] = PLACES
        ends_since = np.cumsum(ended[::-1])[::-1]
        first = max(after - STEPS, int(np.sum(ends_since > once.observations.last_ones)))
        assert once.drawable(after, kept[1]) == max(after - first - n_step + 1, 0)
        if once.drawable(after, kept[1]):
            found = [partial(read, rows) for read, rows in zip(reads, kept, strict=True)]
            assert_equal(*(windows(one, first, once.drawable(after, kept[1])) for one in found))


@pytest.mark.long
def test_short_episodes_leave_fewer_steps():
    """With an end after each step, the last observations of 3 steps of 12 are kept: those of one window."""
    pairs, once = rings(3, IMAGE, 4)
    player = Player(IMAGE, 4, 1.0)
    kept = [ring.empty(player.steps()) for ring in (pairs, once)]
    player.restart()
    puts = [jax.jit(ring.put) for ring in (pairs, once)]
    for taken in range(0, 20, LENGTH):
        new = player.steps()
        kept = [put(rows, new, np.int32(taken)) for put, rows in zip(puts, kept, strict=True)]
    assert once.observations.last_ones == 3 * PLACES
    assert int(once.observations.first_kept(kept[1].observations)) == 17
    assert once.drawable(20, kept[1]) == 1
    found = [windows(partial(ring.transitions, rows), 17, 1) for ring, rows in zip((pairs, once), kept, strict=True)]
    assert_equal(*found)
    assert np.asarray(once.drawable_steps(kept[1], jnp.arange(8, 18), jnp.int32(20))).tolist() == [17] * 10


def test_steps_without_an_observation_are_replaced_evenly():
    ring = Ring(100, 1, 0.9, ObservationsOnce(100, 1, 1, 1))
    like = Steps(
        *(jnp.zeros((1, 1)) for _ in range(3)), *(jnp.zeros((1, 1), bool) for _ in range(2)), jnp.zeros((1, 1))
    )
    rows = ring.empty(like)
    rows = rows._replace(observations=rows.observations._replace(first=jnp.int32(960)))
    found = np.asarray(ring.drawable_steps(rows, jnp.arange(900, 1000), jnp.int32(1000)))
    assert (found[60:] == np.arange(960, 1000)).all()
    counts = np.bincount(found - 960, minlength=40)
    assert counts.min() >= 2  # 60 more over 40 steps
    assert counts.max() <= 4


def test_a_stored_ring_goes_on_as_it_would():
    _, once = rings(2, PARTS, 3)
    player = Player(PARTS, 3, 0.1)
    like = player.steps()
    player.restart()
    rows, put, read = once.empty(like), jax.jit(once.put), jax.jit(once.transitions)
    for taken in range(0, 26, LENGTH):
        rows, after = put(rows, player.steps(), np.int32(taken)), taken + LENGTH
        again = once.restored(like, once.stored(rows, after), after, "here")
        steps = once.drawable(after, rows)
        assert_equal(*(windows(partial(read, each), after - 1 - steps, steps) for each in (rows, again)))
        rows = again


def test_stacks_take_the_memory_of_their_frames():
    """Of 16 float32 and stacks of 4, in bytes of a row: 512 in pairs."""
    steps, places = 1000, 10
    space = spaces.Box(0, 1, (4, 4, 1), np.float32)
    obs = jax.ShapeDtypeStruct((1, places, 4, 4, 4), jnp.float32)
    like = jax.ShapeDtypeStruct((1, places), jnp.float32)
    flag = jax.ShapeDtypeStruct((1, places), bool)
    new = Steps(obs, like, like, flag, flag, obs)

    def bytes_of(form):
        return Ring(steps, 1, 0.9, form).bytes_of(new) / steps / places

    pairs = bytes_of(ObservationPairs(steps))
    whole, frames = (bytes_of(ObservationsOnce(steps, places, 1, 1, *frame)) for frame in ((), (4, space)))
    assert pairs == 2 * 256 + 10
    assert whole == pytest.approx(1.25 * 256 + 10 + 5, abs=1)
    assert frames == pytest.approx(1.25 * 64 + 10 + 5, abs=1)
