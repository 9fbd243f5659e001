"""Classic control and the grid world beside Gymnasium's, step for step from the same states."""

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.env.jax.classic_control import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from rollax.env.jax.grid_world import FrozenLake
from rollax.errors import EnvError
from tests.env.refused import refused

RNG = np.random.default_rng(0)
CARTS = RNG.uniform(-1, 1, (300, 4)).astype(np.float32) * np.array([2.5, 4, 0.22, 4], np.float32)
PENDULUMS = RNG.uniform(-1, 1, (300, 2)).astype(np.float32) * np.array([10, 8], np.float32)
ACROBOTS = RNG.uniform(-1, 1, (300, 4)).astype(np.float32) * np.array([3.1, 3.1, 12, 27], np.float32)
CARS = RNG.uniform([-1.2, -0.07], [0.6, 0.07], (300, 2)).astype(np.float32)


def steps_of(env, states, actions):
    """The outcomes of one step from each state."""
    keys = jax.random.split(jax.random.key(0), len(states))
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(env.step))(jnp.asarray(states), jnp.asarray(actions), keys))


THREE = np.arange(300) % 3
WAVES = np.sin(np.arange(300, dtype=np.float32))[:, None]


@pytest.mark.parametrize(
    ("env", "name", "states", "actions", "rtol"),
    [
        (CartPole(), "CartPole-v1", CARTS, np.arange(300) % 2, 1e-5),
        (Pendulum(), "Pendulum-v1", PENDULUMS, 3 * WAVES, 1e-4),  # beyond the bounds of its actions too
        (Acrobot(), "Acrobot-v1", ACROBOTS, THREE, 1e-3),  # fast ones turn by 5 in a step
        (MountainCar(), "MountainCar-v0", CARS, THREE, 1e-5),
        (MountainCarContinuous(), "MountainCarContinuous-v0", CARS, 2 * WAVES, 1e-5),
        (MountainCar(goal_velocity=0.03), "MountainCar-v0", CARS, THREE, 1e-5),
    ],
    ids=["cartpole", "pendulum", "acrobot", "mountain car", "continuous", "velocity"],
)
def test_spaces_and_steps_as_gymnasiums(env, name, states, actions, rtol):
    settings = {"goal_velocity": env.goal_velocity} if "Car-" in name or "CarC" in name else {}
    theirs: Any = gym.make(name, **settings).unwrapped
    assert (env.observation_space, env.action_space) == (theirs.observation_space, theirs.action_space)
    outcome = steps_of(env, states, actions)
    for row, state in enumerate(states):
        theirs.reset()
        theirs.state = state.astype(np.float64)
        obs, reward, terminated, *_ = theirs.step(actions[row])
        np.testing.assert_allclose(outcome.obs[row], obs, rtol=rtol, atol=rtol / 10)
        assert outcome.reward[row] == pytest.approx(reward, rel=rtol, abs=rtol)
        assert outcome.terminated[row] == terminated
    assert not outcome.truncated.any()
    if name != "Pendulum-v1":
        assert 2 < np.count_nonzero(outcome.terminated) < 290
    if states is CARS:
        assert ((outcome.obs[:, 0] == np.float32(-1.2)) & (outcome.obs[:, 1] == 0)).any()  # at the wall


class TestFrozenLake:
    """The grid world."""

    @pytest.mark.parametrize("map_name", ["4x4", "8x8"])
    def test_steps_as_gymnasiums(self, map_name):
        theirs = gym.make("FrozenLake-v1", map_name=map_name, is_slippery=False).unwrapped
        env = FrozenLake(map_name=map_name, is_slippery=False)
        rows, columns = theirs.desc.shape
        from_all = [(row, column, action) for row in range(rows) for column in range(columns) for action in range(4)]
        states, actions = np.array(from_all, np.int32)[:, :2], np.array(from_all, np.int32)[:, 2]
        outcome = steps_of(env, states, actions)
        for number, (row, column, action) in enumerate(from_all):
            if theirs.desc[row, column] in b"GH":
                continue  # an episode is over there
            [(_, state, reward, terminated)] = theirs.P[row * columns + column][action]
            found = outcome.obs[number], outcome.reward[number], outcome.terminated[number]
            assert found == (state, reward, terminated)

    def test_slips_to_both_sides_equally(self):
        env = FrozenLake(success_rate=0.6, desc=["FFF", "FSF", "FFF"], reward_schedule=(1, 0, -1))
        outcome = steps_of(env, np.ones((6000, 2), np.int32), np.full(6000, 2, np.int32))
        # Right with 0.6, down and up with 0.2 each; the standard deviation of a share is at most 0.0064.
        np.testing.assert_allclose(
            np.bincount(outcome.obs, minlength=9) / 6000, [0, 0.2, 0, 0, 0, 0.6, 0, 0.2, 0], atol=0.03
        )
        assert (outcome.reward == -1).all()

    def test_begins_on_every_start(self):
        _, obs = jax.vmap(FrozenLake(desc=["SFS", "FGS"]).reset)(jax.random.split(jax.random.key(0), 300))
        assert set(np.asarray(obs).tolist()) == {0, 2, 5}

    @pytest.mark.parametrize(
        "settings", [{"desc": []}, {"desc": ["FF", "FG"]}, {"desc": ["SF", "F"]}, {"desc": ["SX"]}, {"map_name": "3x3"}]
    )
    def test_wrong_grids(self, settings):
        caught = refused(EnvError, FrozenLake, **settings)
        assert [caught.parts["where"]] == list(settings)


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [
        (CartPole(), [-0.05] * 4, [0.05] * 4),
        (Pendulum(), [-np.pi, -1], [np.pi, 1]),
        (Acrobot(), [-0.1] * 4, [0.1] * 4),
        (MountainCar(), [-0.6, 0], [-0.4, 0]),  # at rest
        (MountainCarContinuous(), [-0.6, 0], [-0.4, 0]),
    ],
    ids=["cartpole", "pendulum", "acrobot", "mountain car", "continuous"],
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
