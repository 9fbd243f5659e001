"""CartPole and Pendulum beside Gymnasium's, step for step from the same states."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.env.jax.classic_control import CartPole, Pendulum

RNG = np.random.default_rng(0)
CARTS = RNG.uniform(-1, 1, (300, 4)).astype(np.float32) * np.array([2.5, 4, 0.22, 4], np.float32)
PENDULUMS = RNG.uniform(-1, 1, (300, 2)).astype(np.float32) * np.array([10, 8], np.float32)


def steps_of(env, states, actions):
    """The outcomes of one step from each state."""
    keys = jax.random.split(jax.random.key(0), len(states))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(env.step))(jnp.asarray(states), jnp.asarray(actions), keys))


def test_cartpole_steps_as_gymnasiums():
    env, actions = gym.make("CartPole-v1").unwrapped, np.arange(len(CARTS)) % 2
    outcome = steps_of(CartPole(), CARTS, actions.astype(np.int32))
    for row, state in enumerate(CARTS):
        env.reset()
        env.state, env.steps_beyond_terminated = tuple(map(float, state)), None
        obs, reward, terminated, _, _ = env.step(actions[row])
        np.testing.assert_allclose(outcome.obs[row], obs, rtol=1e-5, atol=1e-6)
        assert (outcome.reward[row], outcome.terminated[row], outcome.truncated[row]) == (reward, terminated, False)
    np.testing.assert_array_equal(outcome.state, outcome.obs)
    assert 10 < np.count_nonzero(outcome.terminated) < 290


def test_pendulum_steps_as_gymnasiums():
    env = gym.make("Pendulum-v1").unwrapped
    actions = 3 * np.sin(np.arange(len(PENDULUMS), dtype=np.float32))[:, None]  # beyond their bounds too
    outcome = steps_of(Pendulum(), PENDULUMS, actions)
    for row, state in enumerate(PENDULUMS):
        env.reset()
        env.state = state.astype(np.float64)
        obs, reward, *_ = env.step(actions[row])
        np.testing.assert_allclose(outcome.obs[row], obs, rtol=1e-4, atol=1e-5)
        assert outcome.reward[row] == pytest.approx(reward, rel=1e-4, abs=1e-4)
    assert not (outcome.terminated | outcome.truncated).any()


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [(CartPole(), [-0.05] * 4, [0.05] * 4), (Pendulum(), [-np.pi, -1], [np.pi, 1])],
    ids=["cartpole", "pendulum"],
)
def test_first_states_fill_the_range_of_gymnasiums(env, low, high):
    states, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 2000))
    assert (states >= np.float32(low)).all()
    assert (states <= np.float32(high)).all()
    width = np.subtract(high, low)
    # The mean of 2000 uniform numbers has a standard deviation of width / sqrt(12 · 2000) = 0.0065 width.
    np.testing.assert_allclose(states.mean(axis=0), np.add(high, low) / 2, atol=0.03 * width.max())
    np.testing.assert_allclose(states.std(axis=0), width / np.sqrt(12), rtol=0.05)
    assert np.unique(states[:, 0]).size > 1900
    assert env.observation_space.contains(np.asarray(obs[0]))


def test_other_physics():
    state = jnp.float32([0, 0, 0.1, 0])
    light = CartPole(masscart=0.1).step(state, jnp.int32(1), jax.random.key(0))
    heavy = CartPole(masscart=10.0).step(state, jnp.int32(1), jax.random.key(0))
    assert light.obs[1] > 5 * heavy.obs[1]
