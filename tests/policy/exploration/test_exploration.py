"""Uniformly random actions for the first steps, around other explorations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax.models.distributions.discrete import Categorical
from rollax.policy.exploration.action_noise import Deterministic, OrnsteinUhlenbeckNoise
from rollax.policy.exploration.exploration import FromDistribution, RandomAtFirst
from rollax.schedules import Schedule

BOX = spaces.Box(-3, 5, (2, 1), np.float32)


def drawn(exploration, outputs, timestep, state=()):
    noise, state = exploration.noise(np.random.default_rng(0), len(outputs), timestep, state)
    return np.asarray(jax.jit(exploration.sample)(outputs, noise)), state


def test_uniform_then_as_inside():
    exploration = RandomAtFirst(Deterministic((2, 1)), BOX, 10)
    outputs = jnp.full((10_000, 2), 0.75)
    actions, _ = drawn(exploration, outputs, 9)
    assert actions.shape == (10_000, 2, 1)
    # Quarters of [-1, 1], whatever the bounds are.
    counts = np.histogram(actions[:, 0, 0], bins=[-1, -0.5, 0, 0.5, 1])[0]
    np.testing.assert_allclose(counts / 10_000, 0.25, atol=0.02)
    assert abs(np.corrcoef(actions[:, 0, 0], actions[:, 1, 0])[0, 1]) < 0.04
    actions, _ = drawn(exploration, outputs, 10)
    np.testing.assert_array_equal(actions, 0.75)
    np.testing.assert_array_equal(exploration.mode(outputs), actions)


def test_only_valid_choices_all_equally_likely():
    exploration = RandomAtFirst(FromDistribution(Categorical(4, -1)), spaces.Discrete(4, start=-1), 10)
    outputs = exploration.mask(jnp.array([[9.0, -9.0, 0.0, 5.0]]), jnp.array([[1, 1, 0, 1]]))
    actions, _ = drawn(exploration, jnp.repeat(outputs, 9000, 0), 0)
    np.testing.assert_allclose(np.bincount(actions + 1, minlength=4) / 9000, [1 / 3, 1 / 3, 0, 1 / 3], atol=0.02)
    actions, _ = drawn(exploration, jnp.repeat(outputs, 100, 0), 10)
    assert -1 in actions  # exp(9) against exp(5)
    assert 0 not in actions


def test_walks_go_on_meanwhile():
    inner = OrnsteinUhlenbeckNoise(Deterministic((2, 1)), (2, 1), Schedule(1.0))
    exploration = RandomAtFirst(inner, BOX, 10)
    state = [np.repeat(part[None], 3, axis=0) for part in exploration.initial_state()]
    _, state = drawn(exploration, jnp.zeros((3, 2)), 0, state)
    assert (state[0] != 0).all()
    actions, after = drawn(exploration, jnp.zeros((3, 2)), 10, state)
    np.testing.assert_allclose(actions.reshape(3, 2), after[0])
