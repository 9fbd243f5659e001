"""`VectorEnv.wrap` in a loop of one's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollax import EnvError, VectorEnv


class Lengths(gym.Env):
    """An episode of `length` steps; `flag` is the type of its flags."""

    observation_space, action_space = gym.spaces.Discrete(9), gym.spaces.Discrete(2)

    def __init__(self, length: int, terminates: bool, flag: type = bool) -> None:
        self.length, self.terminates, self.flag = length, terminates, flag

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action: Any):
        self.count += 1
        over = self.count >= self.length
        flags = self.flag(over and self.terminates), self.flag(over and not self.terminates)
        return self.count, 1.0, *flags, {}


def wrapped(*envs: Lengths) -> VectorEnv:
    return VectorEnv.wrap(existing_envs=envs, num_envs=len(envs))


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("flag", [bool, np.bool_])
def test_a_step_after_the_end_is_refused(terminates, flag):
    env = wrapped(Lengths(9, True), Lengths(2, terminates, flag))
    env.vector_reset()
    assert env.vector_step([0, 0])[0] == [1, 1]
    obs, _, terminateds, truncateds, _ = env.vector_step([0, 0])
    assert (obs, list(terminateds), list(truncateds)) == ([2, 2], [False, terminates], [False, not terminates])
    for _ in range(2):
        with pytest.raises(EnvError, match=r"(?s)without a running episode.*sub-environment 1\n.*reset_at\(1\)"):
            env.vector_step([0, 0])
    env.reset_at(1)
    assert env.vector_step([0, 0])[0] == [3, 1]  # the refused steps were not taken in sub-environment 0


def test_a_step_before_the_first_reset_is_refused():
    env = wrapped(Lengths(9, True), Lengths(9, True))
    env.reset_at(0)
    with pytest.raises(EnvError, match=r"(?s)without a running episode.*sub-environment 1\n.*vector_reset"):
        env.vector_step([0, 0])
    env.vector_reset()
    assert env.vector_step([0, 0])[0] == [1, 1]
