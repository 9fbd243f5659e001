"""Noise that stays the same for several steps: how long, for which rows, and with other explorations around it."""

from itertools import groupby

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import DDPG, SAC, TD3, ConfigError
from rollax.models.distributions.gaussian import SquashedGaussian
from rollax.policy.exploration import FromDistribution
from rollax.policy.exploration.action_noise import OrnsteinUhlenbeckNoise, RandomAtFirst
from rollax.policy.exploration.repeated_noise import RepeatedNoise, repeat_probabilities

BOX = spaces.Box(-1, 1, (2,), np.float32)
INNER = FromDistribution(SquashedGaussian((2,)))


def repeated(longest: int) -> RepeatedNoise:
    return RepeatedNoise(INNER, np.arange(1, longest + 1), repeat_probabilities(longest))


def test_probabilities():
    # 1, ¼, 1/9: 36, 9 and 4 of 49.
    np.testing.assert_allclose(repeat_probabilities(3), np.array([36, 9, 4]) / 49)


def test_lengths_have_these_probabilities():
    rows = 50_000
    lengths = repeated(16).noise(np.random.default_rng(0), rows, 0)[:, -1].astype(int)
    expected = repeat_probabilities(16)
    counts = np.bincount(lengths, minlength=17)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / rows, expected, atol=4 * np.sqrt(expected.max() / rows / 4))


@pytest.mark.parametrize("traced", [False, True])
def test_rows_keep_their_noise_for_their_own_lengths(traced):
    exploration = repeated(16)
    advance = jax.jit(exploration.advance) if traced else exploration.advance
    # Two rows; the columns are two numbers of the inner noise, and the length, which counts where noise begins.
    #   step   row 0                      row 1
    #     0    .0, for 1 step             .5, for 3 steps
    #     1    .1, for 2 steps            kept
    #     2    kept, whatever is drawn    kept
    #     3    .3, for 1 step             .8, for 2 steps
    #     4    .4                         kept
    lengths = [[1, 3], [2, 1], [9, 1], [1, 2], [1, 1]]
    expected = [[0.0, 0.5], [0.1, 0.5], [0.1, 0.5], [0.3, 0.8], [0.4, 0.8]]
    state = [np.repeat(part[None], 2, axis=0) for part in exploration.initial_state()]
    for step, (ks, numbers) in enumerate(zip(lengths, expected, strict=True)):
        drawn = np.array([[0.1 * step] * 2, [0.5 + 0.1 * step] * 2], np.float32)
        noise, state = advance(np.concatenate([drawn, np.array(ks, np.float32)[:, None]], axis=1), state)
        np.testing.assert_allclose(np.asarray(noise)[:, 0], numbers, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(noise)[:, 1], numbers, rtol=1e-6)
        actions = exploration.sample(jnp.zeros((2, 4)), jnp.asarray(noise))
        np.testing.assert_allclose(actions, INNER.sample(jnp.zeros((2, 4)), jnp.asarray(noise)[:, :2]), rtol=1e-6)


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_noise_of_algorithms(algorithm):
    """Of sampled actions, and of GaussianNoise."""
    small = {"seed": 0, "random_steps": 0, "model": {"fcnet_hiddens": (4,)}}
    policy = algorithm.make_policy(BOX, BOX, {**small, "longest_repeat": 8})
    obs, state = np.zeros((1, 2), np.float32), [part[None] for part in policy.get_initial_state()]
    actions = []
    for _ in range(40):
        action, state, _ = policy.compute_actions(obs, state)
        actions.append(tuple(action[0].tolist()))
    runs = [len(list(run)) for _, run in groupby(actions)]
    assert max(runs) in range(2, 9)
    assert len({*actions}) == len(runs) > 10
    assert algorithm.make_policy(BOX, BOX, small).get_initial_state() == []


def test_noise_that_is_correlated_by_itself_is_not_repeated():
    with pytest.raises(ConfigError, match="longest_repeat has no effect"):
        DDPG.make_policy(BOX, BOX, {"longest_repeat": 4})


def test_other_explorations_around_it():
    exploration = RandomAtFirst(OrnsteinUhlenbeckNoise(repeated(4), (2,), lambda _: 0.1), BOX, 10)
    outputs = jnp.zeros((3, 4))
    for timestep, is_random in ((0, True), (10, False)):
        rng = np.random.default_rng(0)
        state = [np.repeat(part[None], 3, axis=0) for part in exploration.initial_state()]
        noise, after = exploration.advance(exploration.noise(rng, 3, timestep), state)
        assert [np.shape(part) for part in after] == [np.shape(part) for part in state]
        inner = np.asarray(INNER.sample(outputs, jnp.asarray(noise)[:, :2]))
        apart = np.abs(np.asarray(exploration.sample(outputs, jnp.asarray(noise))) - inner).max()
        assert (apart > 0.2) == is_random  # noise that has begun has a deviation of 0.1 · 0.2
