"""Stacks of observations and repeated actions in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import Outcome, TimeLimit, to_base_env
from rollax.env.jax.wrappers import JaxActionRepeat
from tests.env.drive import drive
from tests.env.jax.worlds import JaxClock, JaxClocks, Unlike, jax_clock_trace
from tests.env.test_contract import seeds_for
from tests.env.test_stacking import stacks_of


@pytest.mark.long
@pytest.mark.parametrize("env", [JaxClock, JaxClocks])
def test_stacks_are_those_of_every_kind(env):
    seeds = seeds_for(2)
    for trace, seed in zip(drive(to_base_env(env(), num_envs=2, frame_stack=3), "rows", 20, seeds), seeds, strict=True):
        assert any(moment.ended for moment in trace)
        assert trace == stacks_of(jax_clock_trace(seed, len(trace), env), 3)


def test_stacks_of_agents_with_spaces_of_their_own():
    env = to_base_env(TimeLimit(Unlike(), 3), frame_stack=2)
    rows = env.reset_rows(np.arange(1))
    assert rows is not None
    env.send_rows(rows, np.array([0]), np.full((1, 2), 3, np.float32))
    env.send_rows(rows, np.array([1]), np.array([2]))
    mover, turner = env.poll_rows().obs
    # The mover sees the turn and the count. The mask, which is not stacked, excludes action count % 3.
    assert [part.tolist() for part in mover] == [[0, 2], [0, 1]]
    assert turner["seen"].tolist() == [0, 0, 3, 3]
    assert turner["action_mask"].tolist() == [1, 0, 1]


class Digits(JaxClock):
    """Episodes end in step `length`; step n gives the reward 10^n and adds the action to the observation."""

    observation_space = spaces.Box(0, 99, (), np.float32)
    length = 5

    def reset(self, key):
        return (jnp.int32(0), jnp.float32(0)), jnp.float32(0)

    def step(self, state, action, key):
        count, total = state[0] + 1, state[1] + action
        return Outcome((count, total), total, 10**count, count == self.length)


def test_rewards_of_a_repeated_action_are_summed_until_the_end():
    env = JaxActionRepeat(Digits(), 3)
    step = jax.jit(env.step)
    state, _ = env.reset(jax.random.key(0))
    first = step(state, jnp.int32(2), jax.random.key(1))
    second = step(first.state, jnp.int32(4), jax.random.key(2))
    assert [(float(one.obs), int(one.reward), bool(one.terminated)) for one in (first, second)] == [
        (6, 1110, False),
        (14, 110000, True),
    ]


def test_each_repetition_draws_its_own_numbers():
    clock, key = JaxClock(), jax.random.key(3)
    state = {"count": jnp.int32(0), "length": jnp.int32(9), "kind": jnp.int32(0)}
    outcome = JaxActionRepeat(clock, 2).step(state, jnp.int32(1), key)
    last = jax.random.split(key, 2)[1]
    assert outcome.obs.tolist() == clock.step({**state, "count": jnp.int32(1)}, jnp.int32(1), last).obs.tolist()
    assert float(outcome.reward) == pytest.approx(1.1 + 2.1)


def test_actions_are_repeated_before_observations_are_stacked():
    env = to_base_env(Digits(), num_envs=2, action_repeat=2, frame_stack=2)
    rows = env.reset_rows(np.arange(2))
    for expected in ([0, 2], [2, 4], [4, 5]):
        env.send_rows(rows, None, np.ones(2, np.int64))
        rows = env.poll_rows()
        assert rows.obs.tolist() == [expected] * 2
    assert rows.terminateds.all()
