"""Exploration on values of discrete actions: frequencies of actions, and invalid actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Discrete

from rollax.core.schedules import Schedule
from rollax.models.distributions import MASKED_LOGIT
from rollax.models.distributions.discrete import Categorical
from rollax.policy.exploration.epsilon_greedy import EpsilonGreedy, GroupExploration, SoftQ

VALUES = jnp.array([[1.0, 5.0, 2.0, 0.0]])


def drawn(exploration, values, rows=20_000, timestep=0):
    assert exploration.initial_state() == []
    noise = exploration.noise(np.random.default_rng(0), rows, timestep)
    return np.asarray(jax.jit(exploration.sample)(jnp.repeat(values, rows, 0), noise))


def frequencies(actions, size=4):
    return np.bincount(actions, minlength=size) / len(actions)


class TestEpsilonGreedy:
    def test_greedy_without_epsilon(self):
        exploration = EpsilonGreedy(Discrete(4), Schedule(0.0))
        assert set(drawn(exploration, VALUES, 100)) == {1}
        assert exploration.mode(VALUES).tolist() == [1]

    def test_frequencies(self):
        # ε = 0.4: each of four has 0.1, the best 0.6 more
        found = frequencies(drawn(EpsilonGreedy(Discrete(4), Schedule(0.4)), VALUES))
        np.testing.assert_allclose(found, [0.1, 0.7, 0.1, 0.1], atol=0.01)

    def test_only_valid_actions(self):
        exploration = EpsilonGreedy(Discrete(4), Schedule(1.0))
        masked = Categorical(4).mask(VALUES, jnp.array([[1, 0, 0, 1]]))
        np.testing.assert_allclose(frequencies(drawn(exploration, masked)), [0.5, 0, 0, 0.5], atol=0.02)
        assert exploration.mode(masked).tolist() == [0]

    def test_epsilon_follows_its_schedule(self):
        exploration = EpsilonGreedy(Discrete(4), Schedule(((0, 1.0), (100, 0.0))))
        shares = [np.mean(drawn(exploration, VALUES, timestep=t) != 1) for t in (0, 50, 100)]
        np.testing.assert_allclose(shares, [0.75, 0.375, 0.0], atol=0.02)

    def test_actions_begin_at_the_start_of_the_space(self):
        exploration = EpsilonGreedy(Discrete(4, start=-2), Schedule(1.0))
        assert set(drawn(exploration, VALUES, 200)) == {-2, -1, 0, 1}
        assert exploration.mode(VALUES).tolist() == [-1]
        assert exploration.fetches(VALUES, jnp.array([-1]))["q_value"].tolist() == [[5.0]]


class TestSoftQ:
    def test_frequencies(self):
        # τ = 2, values 2 ln k: probabilities proportional to k = 1, 2, 3, 4
        values = 2 * jnp.log(jnp.array([[1.0, 2.0, 3.0, 4.0]]))
        found = frequencies(drawn(SoftQ(Discrete(4), 2.0), values))
        np.testing.assert_allclose(found, [0.1, 0.2, 0.3, 0.4], atol=0.015)


@pytest.mark.short(every=3)
@pytest.mark.parametrize("values", [[-1e31, 1e30, -3e38, 0], [-4e29, 0, 0, -3e29], [-3e38, 0, 0, -3e38]])
@pytest.mark.parametrize(
    "exploration",
    [
        EpsilonGreedy(Discrete(4), Schedule(0.5)),
        SoftQ(Discrete(4), 1e-3),
        SoftQ(Discrete(4), 1.0),
        SoftQ(Discrete(4), 1e37),
    ],
    ids=["epsilon", "cold", "warm", "hot"],
)
def test_low_values_of_valid_actions_are_above_those_of_invalid_ones(exploration, values):
    masked = Categorical(4).mask(jnp.array([values]), jnp.array([[1, 0, 0, 1]]))
    assert set(drawn(exploration, masked, 500)) <= {0, 3}
    assert exploration.mode(masked).tolist() == [3 if values[3] > values[0] else 0]
    assert exploration.probabilities(np.asarray(masked), 0)[0, 1:3].tolist() == [0, 0]
    fetched = exploration.fetches(jnp.repeat(masked, 2, 0), jnp.array([0, 3]))
    assert np.isfinite(fetched["q_value"]).all()


# three members with two actions each; the best are 1, 0, 1
GROUP_VALUES = jnp.array([[0.0, 5.0, 3.0, 1.0, 0.0, 2.0]])


def group(epsilon, start=0):
    return GroupExploration(EpsilonGreedy(Discrete(2, start=start), Schedule(epsilon)), 3)


def group_actions(exploration, values, rows=20_000):
    noise = exploration.noise(np.random.default_rng(0), rows, 0)
    actions = jax.jit(exploration.sample)(jnp.repeat(values, rows, 0), noise)
    assert isinstance(actions, tuple)
    return np.stack(actions, axis=1)


def test_best_action_of_each_member():
    assert [int(column[0]) for column in group(0.0).mode(GROUP_VALUES)] == [1, 0, 1]
    assert [int(column[0]) for column in group(0.0, start=3).mode(GROUP_VALUES)] == [4, 3, 4]
    assert (group_actions(group(0.0), GROUP_VALUES, 50) == [1, 0, 1]).all()


def test_members_explore_independently():
    # ε = 0.4: each differs from its best action in 0.2 of the rows; two of them at once in 0.04, independently
    off = group_actions(group(0.4), GROUP_VALUES) != [1, 0, 1]
    np.testing.assert_allclose(off.mean(axis=0), [0.2] * 3, atol=0.01)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        np.testing.assert_allclose((off[:, a] & off[:, b]).mean(), 0.04, atol=0.006)


def test_only_valid_actions_of_each_member():
    values = GROUP_VALUES.at[0, jnp.array([1, 2])].set(MASKED_LOGIT)
    actions = group_actions(group(1.0), values)
    assert (actions[:, 0] == 0).all()
    assert (actions[:, 1] == 1).all()
    np.testing.assert_allclose(actions[:, 2].mean(), 0.5, atol=0.02)


def test_fetched_value_is_the_mean_over_members():
    exploration = group(0.0, start=1)
    actions = (jnp.array([1]), jnp.array([2]), jnp.array([2]))  # values 0, 1, 2
    assert exploration.fetches(GROUP_VALUES, actions)["q_value"].tolist() == [[1.0]]
    assert exploration.num_inputs == 6
