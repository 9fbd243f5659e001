"""Noise of continuous actions: its scale, state and bounds; and random actions in the first steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax.core.schedules import Schedule
from rollax.models.distributions import MASKED_LOGIT
from rollax.models.distributions.discrete import Categorical
from rollax.models.distributions.gaussian import SquashedGaussian
from rollax.policy.exploration import FromDistribution
from rollax.policy.exploration.action_noise import Deterministic, GaussianNoise, OrnsteinUhlenbeckNoise, RandomAtFirst

SHAPE = (2, 1)
BOX = spaces.Box(-3, 5, SHAPE, np.float32)


def drawn(exploration, outputs, timestep=0, state=(), rng=None):
    rng = np.random.default_rng(0) if rng is None else rng
    noise, state = jax.jit(exploration.advance)(exploration.noise(rng, len(outputs), timestep), list(state))
    return np.asarray(jax.jit(exploration.sample)(outputs, noise)), state


class Normal(np.random.Generator):
    """A random generator that returns given normal numbers."""

    def __init__(self, *numbers):
        super().__init__(np.random.PCG64(0))
        self.numbers = [np.asarray(each, np.float32) for each in numbers]

    def standard_normal(self, shape, dtype):
        assert self.numbers[0].shape == shape
        return self.numbers.pop(0)


def test_deterministic():
    exploration = Deterministic(SHAPE)
    outputs = jnp.array([[0.25, -0.5], [1.0, 0.0]])
    actions, state = drawn(exploration, outputs)
    assert state == []
    np.testing.assert_array_equal(actions, [[[0.25], [-0.5]], [[1.0], [0.0]]])
    np.testing.assert_array_equal(exploration.mode(outputs), actions)
    np.testing.assert_array_equal(exploration.fetches(outputs, actions)["greedy_actions"], outputs)


class TestGaussianNoise:
    def test_scale(self):
        exploration = GaussianNoise(Deterministic(SHAPE), SHAPE, Schedule(0.1))
        actions, state = drawn(exploration, jnp.full((20_000, 2), 0.25))
        assert state == []
        assert actions.shape == (20_000, 2, 1)
        np.testing.assert_allclose(actions.mean(axis=0), 0.25, atol=0.005)
        np.testing.assert_allclose(actions.std(axis=0), 0.1, rtol=0.03)
        assert abs(np.corrcoef(actions[:, 0, 0], actions[:, 1, 0])[0, 1]) < 0.03

    def test_follows_its_schedule_and_is_clipped(self):
        exploration = GaussianNoise(Deterministic(SHAPE), SHAPE, Schedule([[0, 2.0], [100, 0.0]]))
        normal = [[1.0, -1.0]]
        for timestep, expected in ((0, [1.0, -1.0]), (50, [1.0, -0.5]), (75, [1.0, 0.0]), (100, [0.5, 0.5])):
            actions, _ = drawn(exploration, jnp.full((1, 2), 0.5), timestep, rng=Normal(normal))
            np.testing.assert_allclose(actions.ravel(), expected, rtol=1e-6)
        np.testing.assert_array_equal(exploration.mode(jnp.full((1, 2), 0.5)).ravel(), 0.5)


class TestOrnsteinUhlenbeckNoise:
    def test_recursion(self):
        # θ = 0.25, σ = 2:     ε       x                       0.1 x
        #   row 0   step 1   1, 0     2, 0                    0.2, 0
        #           step 2  -1, 1    2 - 0.5 - 2, 0 + 2      -0.05, 0.2
        #   row 1   step 1   2, 1    4, 2                     0.4, 0.2
        #           step 2   0, 0    3, 1.5                   0.3, 0.15
        exploration = OrnsteinUhlenbeckNoise(Deterministic(SHAPE), SHAPE, Schedule(0.1), theta=0.25, sigma=2.0)
        (start,) = exploration.initial_state()
        state = [np.repeat(start[None], 2, axis=0)]
        rng = Normal([[1, 0], [2, 1]], [[-1, 1], [0, 0]])
        first, state = drawn(exploration, jnp.zeros((2, 2)), state=state, rng=rng)
        np.testing.assert_allclose(first[..., 0], [[0.2, 0], [0.4, 0.2]], rtol=1e-6)
        second, state = drawn(exploration, jnp.zeros((2, 2)), state=state, rng=rng)
        np.testing.assert_allclose(second[..., 0], [[-0.05, 0.2], [0.3, 0.15]], rtol=1e-6)
        np.testing.assert_allclose(state[0], [[-0.5, 2], [3, 1.5]])

    def test_stationary_variance(self):
        # The variance converges to σ² / (1 - (1 - θ)²).
        exploration = OrnsteinUhlenbeckNoise(Deterministic((1,)), (1,), Schedule(1.0), theta=0.5, sigma=0.3)
        rng, state = np.random.default_rng(0), [np.zeros((20_000, 1), np.float32)]
        for _ in range(12):
            _, state = exploration.advance(exploration.noise(rng, 20_000, 0), state)
        assert state[0].std() == pytest.approx(0.3 / np.sqrt(1 - 0.25), rel=0.03)


def test_noise_of_scale_0_keeps_the_distribution():
    inner = FromDistribution(SquashedGaussian(SHAPE))
    exploration = OrnsteinUhlenbeckNoise(inner, SHAPE, Schedule(0.0))
    outputs = jnp.array([[0.1, -0.2, -1.0, 0.5]])
    state = [np.zeros((1, 2), np.float32)]
    plain, _ = drawn(inner, outputs)
    noisy, _ = drawn(exploration, outputs, state=state)
    np.testing.assert_array_equal(plain, noisy)
    assert exploration.num_inputs == 4
    assert exploration.fetched == inner.fetched
    logp, expected = (each.fetches(outputs, jnp.asarray(plain))["action_logp"] for each in (exploration, inner))
    np.testing.assert_array_equal(logp, expected)


def test_uniform_first_then_the_inner_exploration():
    exploration = RandomAtFirst(Deterministic((2, 1)), BOX, 10)
    outputs = jnp.full((10_000, 2), 0.75)
    actions, _ = drawn(exploration, outputs, 9)
    assert actions.shape == (10_000, 2, 1)
    # Quarters of [-1, 1], for any bounds.
    counts = np.histogram(actions[:, 0, 0], bins=[-1, -0.5, 0, 0.5, 1])[0]
    np.testing.assert_allclose(counts / 10_000, 0.25, atol=0.02)
    assert abs(np.corrcoef(actions[:, 0, 0], actions[:, 1, 0])[0, 1]) < 0.04
    actions, _ = drawn(exploration, outputs, 10)
    np.testing.assert_array_equal(actions, 0.75)
    np.testing.assert_array_equal(exploration.mode(outputs), actions)


def test_valid_choices_are_equally_likely():
    exploration = RandomAtFirst(FromDistribution(Categorical(4, -1)), spaces.Discrete(4, start=-1), 10)
    outputs = Categorical(4, -1).mask(jnp.array([[9.0, -9.0, 0.0, 5.0]]), jnp.array([[1, 1, 0, 1]]))
    actions, _ = drawn(exploration, jnp.repeat(outputs, 9000, 0), 0)
    np.testing.assert_allclose(np.bincount(actions + 1, minlength=4) / 9000, [1 / 3, 1 / 3, 0, 1 / 3], atol=0.02)
    actions, _ = drawn(exploration, jnp.repeat(outputs, 100, 0), 10)
    assert -1 in actions  # exp(9) against exp(5)
    assert 0 not in actions


def test_noise_state_advances_in_random_steps():
    inner = OrnsteinUhlenbeckNoise(Deterministic((2, 1)), (2, 1), Schedule(1.0))
    exploration = RandomAtFirst(inner, BOX, 10)
    state = [np.repeat(part[None], 3, axis=0) for part in exploration.initial_state()]
    _, state = drawn(exploration, jnp.zeros((3, 2)), 0, state)
    assert (state[0] != 0).all()
    actions, after = drawn(exploration, jnp.zeros((3, 2)), 10, state)
    np.testing.assert_allclose(actions.reshape(3, 2), after[0])


def test_an_inner_exploration_keeps_its_state_and_adapts():
    class Shrinking(Deterministic):
        width = 1.0

        def acting_params(self, params, rng):
            return {"scale": params["scale"] * self.width}

        def after_fragment(self, batch, params, outputs_of, timestep):
            self.width /= batch

        def get_state(self):
            return {"width": self.width}

        def set_state(self, state):
            self.width = state["width"]

    one, other = (RandomAtFirst(Shrinking(SHAPE), BOX, 10) for _ in range(2))
    one.after_fragment(2, {}, None, 0)
    other.set_state(one.get_state())
    assert other.acting_params({"scale": 3.0}, None) == {"scale": 1.5}
    plain = RandomAtFirst(Deterministic(SHAPE), BOX, 10)
    for method in ("acting_params", "after_fragment"):
        assert (other.overrides(method), plain.overrides(method)) == (True, False)


def test_probabilities_of_random_actions():
    exploration = RandomAtFirst(FromDistribution(Categorical(4, 0)), spaces.Discrete(4), 10)
    outputs = np.array([[0.0, MASKED_LOGIT, 0.0, np.log(2)]], np.float32)
    np.testing.assert_allclose(exploration.probabilities(outputs, 9), [[1 / 3, 0, 1 / 3, 1 / 3]], rtol=1e-6)
    np.testing.assert_allclose(exploration.probabilities(outputs, 10), [[0.25, 0, 0.25, 0.5]], rtol=1e-6)
