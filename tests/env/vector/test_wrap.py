"""`VectorEnv.wrap` in a loop of one's own."""

from typing import Any

import numpy as np
import pytest

from rollax import EnvError, VectorEnv
from tests.env.refused import refused
from tests.env.worlds import Counting


class Lengths(Counting):
    """`flag` is the type of its flags."""

    def __init__(self, length: int, terminates: bool, flag: type = bool) -> None:
        self.length, self.terminates, self.flag = length, terminates, flag

    def step(self, action: Any):
        obs, reward, over, _, info = super().step(action)
        return obs, reward, self.flag(over and self.terminates), self.flag(over and not self.terminates), info

    def obs(self):
        return self.count


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
        refused(EnvError, env.vector_step, [0, 0], says="without a running episode...sub-environment 1...reset_at(1)")
    env.reset_at(1)
    assert env.vector_step([0, 0])[0] == [3, 1]  # the refused steps were not taken in sub-environment 0


def test_a_step_before_the_first_reset_is_refused():
    env = wrapped(Lengths(9, True), Lengths(9, True))
    env.reset_at(0)
    refused(EnvError, env.vector_step, [0, 0], says="without a running episode...sub-environment 1...vector_reset")
    env.vector_reset()
    assert env.vector_step([0, 0])[0] == [1, 1]
