"""Members of a group explore independently of each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Discrete

from rollax.models.distributions.base import MASKED_LOGIT
from rollax.policy.exploration.groups import GroupExploration
from rollax.policy.exploration.q_values import EpsilonGreedy
from rollax.schedules import Schedule

# three members with two actions each; the best are 1, 0, 1
VALUES = jnp.array([[0.0, 5.0, 3.0, 1.0, 0.0, 2.0]])


def group(epsilon, start=0):
    return GroupExploration(EpsilonGreedy(Discrete(2, start=start), Schedule(epsilon)), 3)


def drawn(exploration, values, rows=20_000):
    noise, _ = exploration.noise(np.random.default_rng(0), rows, 0, [])
    actions = jax.jit(exploration.sample)(jnp.repeat(values, rows, 0), noise)
    assert isinstance(actions, tuple)
    return np.stack(actions, axis=1)


def test_the_best_of_each():
    assert [int(column[0]) for column in group(0.0).mode(VALUES)] == [1, 0, 1]
    assert [int(column[0]) for column in group(0.0, start=3).mode(VALUES)] == [4, 3, 4]
    assert (drawn(group(0.0), VALUES, 50) == [1, 0, 1]).all()


def test_how_often_each_and_together():
    # ε = 0.4: each is off its best in 0.2 of the rows, two of them at once in 0.04, independently
    off = drawn(group(0.4), VALUES) != [1, 0, 1]
    np.testing.assert_allclose(off.mean(axis=0), [0.2] * 3, atol=0.01)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        np.testing.assert_allclose((off[:, a] & off[:, b]).mean(), 0.04, atol=0.006)


def test_only_valid_actions():
    values = VALUES.at[0, jnp.array([1, 2])].set(MASKED_LOGIT)
    actions = drawn(group(1.0), values)
    assert (actions[:, 0] == 0).all()
    assert (actions[:, 1] == 1).all()
    np.testing.assert_allclose(actions[:, 2].mean(), 0.5, atol=0.02)


def test_what_is_fetched_is_the_mean_of_the_values():
    exploration = group(0.0, start=1)
    actions = (jnp.array([1]), jnp.array([2]), jnp.array([2]))  # values 0, 1, 2
    assert exploration.fetches(VALUES, actions)["q_value"].tolist() == [[1.0]]
    assert exploration.num_inputs == 6
