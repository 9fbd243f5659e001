"""HER: goals, rewards and ends of relabelled transitions by hand, and its learning run against plain DQN."""

import numpy as np
import pytest

from examples.her import BITS, CONFIG, HER, FlipBits, HERTrainer, Hindsight
from rollax import DQNTrainer
from rollax.batch import Fragment
from rollax.replay.uniform import UniformReplay

# A trajectory of three rows, 00 -> 10 -> 11 -> 01, which was truncated without reaching its goal, 00.
STATES = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.int8)


def fragment() -> Fragment:
    goals = np.zeros((3, 2), np.int8)
    columns = {"actions": np.arange(3), "rewards": np.zeros(3, np.float32), "trajectory_id": np.zeros(3, int)}
    columns |= {"terminateds": np.zeros(3, bool), "truncateds": np.arange(3) == 2}
    columns["obs"] = {"achieved_goal": STATES[:3], "desired_goal": goals}
    after = {"obs": {"achieved_goal": STATES[3:], "desired_goal": goals[:1]}}
    return Fragment(columns, [2], after)


def drawn(k: float, count: int = 6000):
    buffer = UniformReplay(100, gamma=0.5, columns=["next_goal"])
    env = FlipBits({})
    buffer.add(HER.make_policy(env.observation_space, env.action_space, CONFIG).postprocess_rows(fragment()))
    return buffer.sample(count, np.random.default_rng(0), draw=Hindsight(k=k))


def test_goals_are_those_reached_from_the_row_on():
    # With k = ∞ all rows get another goal: row i one of the states after the rows i to 2, with equal probability. The
    # goal is reached, with a reward of 1 and the end of the trajectory, if it is the state after row i itself.
    batch = drawn(k=1e9)
    for row in range(3):
        of_row = batch["actions"] == row
        goals = batch["obs"]["desired_goal"][of_row]
        found = [(goals == goal).all(axis=1) for goal in STATES[1:]]
        shares = [each.mean() for each in found]
        np.testing.assert_allclose(shares, [0] * row + [1 / (3 - row)] * (3 - row), atol=0.03)
        np.testing.assert_array_equal(batch["rewards"][of_row], found[row].astype(np.float32))
        np.testing.assert_array_equal(batch["discounts"][of_row], np.where(found[row], 0, 0.5).astype(np.float32))
        assert (batch["new_obs"]["desired_goal"][of_row] == goals).all()
        assert (batch["obs"]["achieved_goal"][of_row] == STATES[row]).all()
        assert (batch["new_obs"]["achieved_goal"][of_row] == STATES[row + 1]).all()
    assert batch["rewards"].dtype == np.float32
    assert batch["discounts"].dtype == np.float32


def test_k_of_k_plus_one_rows_get_another_goal():
    # None of the states after a row is the goal of the environment, 00.
    assert drawn(k=4)["obs"]["desired_goal"].any(axis=1).mean() == pytest.approx(0.8, abs=0.02)


def test_rows_with_their_own_goal_are_as_they_were():
    batch = drawn(k=0)
    assert not batch["obs"]["desired_goal"].any()
    assert not batch["rewards"].any()
    assert (batch["discounts"] == 0.5).all()


def test_an_episode_ends_at_its_goal_or_after_as_many_steps_as_bits():
    env = FlipBits({})
    obs, _ = env.reset(seed=0)
    wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    results = [env.step(bit)[1:4] for bit in wrong]
    assert results == [(0.0, False, False)] * (len(wrong) - 1) + [(1.0, True, len(wrong) == BITS)]
    env.reset(seed=0)
    assert [env.step(wrong[0])[1:4] for _ in range(BITS)][-1] == (0.0, False, True)


@pytest.mark.learning
def test_her_flips_20_bits(reaches):
    reaches(HERTrainer, FlipBits, 0.9, 70_400, CONFIG)


@pytest.mark.learning
def test_dqn_does_not(learning_run):
    assert learning_run(DQNTrainer, FlipBits, 0.0, 70_400, CONFIG).best <= 0.05
