"""Without workers, everything runs in the caller's process and thread, without Ray."""

import subprocess
import sys
import threading
import traceback
from collections import deque

import gymnasium as gym
import numpy as np
import pytest

from rollax import EnvError
from rollax.algorithms.registry import get_trainer_class
from tests.faults.worlds import Still

SMALL = {"num_envs_per_worker": 2, "model": {"fcnet_hiddens": (4,)}, "seed": 0}
UNCOMPILED = {**SMALL, "multiagent": {"policies": {"default_policy": (Still, None, None, {})}}}
ALGORITHMS = {
    "PG": {"train_batch_size": 20},
    "PPO": {"train_batch_size": 20, "sgd_minibatch_size": 10, "num_sgd_iter": 1},
    "A2C": {"train_batch_size": 20},
    "A3C": {"timesteps_per_iteration": 20},
    "IMPALA": {"train_batch_size": 20, "rollout_fragment_length": 10, "timesteps_per_iteration": 20},
    "APPO": {"train_batch_size": 20, "rollout_fragment_length": 10, "timesteps_per_iteration": 20},
}


class Breaks(gym.Env):
    """Raises in its 50th step; records the thread of each step."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, env_config):
        self.steps, self.threads = 0, env_config["threads"]

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.threads.append(threading.current_thread())
        if self.steps == 50:
            raise ZeroDivisionError("the axle")
        return np.zeros(2, np.float32), 1.0, self.steps % 5 == 0, False, {}


def train_for_long(trainer):
    for _ in range(20):
        trainer.train()


@pytest.mark.short("PG")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_error_of_the_environment_has_an_ordinary_traceback(algorithm):
    threads: deque[threading.Thread] = deque()  # a list would be copied
    small = SMALL if algorithm == "PPO" else UNCOMPILED
    config = {**small, **ALGORITHMS[algorithm], "env_config": {"threads": threads}}
    with get_trainer_class(algorithm)(Breaks, config) as trainer:
        trainer.train()
        with pytest.raises(EnvError, match="the axle") as raised:
            train_for_long(trainer)
    cause = raised.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert [*traceback.extract_tb(cause.__traceback__)][-1].name == "step"
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert {"train", "sample"} <= {*frames}
    assert {*threads} == {threading.current_thread()}


@pytest.mark.long
def test_ray_is_not_loaded():
    program = """
import sys
from rollax.algorithms.registry import get_trainer_class
from tests.faults.test_serial import ALGORITHMS, SMALL, UNCOMPILED
for algorithm, config in ALGORITHMS.items():
    small = SMALL if algorithm == "PPO" else UNCOMPILED
    with get_trainer_class(algorithm)("CartPole-v1", {**small, **config}) as trainer:
        assert trainer.train()["info"]["workers"] == {"healthy": 1, "restarts": 0, "last_errors": {}}
assert not [name for name in sys.modules if name.partition(".")[0] == "ray"]
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
