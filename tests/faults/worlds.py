"""An environment and a policy that fail on request, in any process."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rollax import EnvContext, Policy
from rollax.models.config import ModelConfig


class Orders:
    """Orders as files, each of which is executed once, and a log.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def give(self, order: str, index: int) -> None:
        """Gives an order to the next object in worker `index` that takes it."""
        (self.folder / f"{order}-{index}").touch()

    def give_always(self, order: str) -> None:
        """Gives an order to all objects, permanently."""
        (self.folder / order).touch()

    def take(self, order: str, index: int) -> bool:
        """Whether there is such an order; taking it removes it, unless it is permanent."""
        try:
            (self.folder / f"{order}-{index}").unlink()
        except FileNotFoundError:
            return (self.folder / order).exists()
        return True

    def note(self, *words: Any) -> None:
        """Writes a line into the log."""
        with (self.folder / "log").open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def noted(self, word: str) -> list[str]:
        """The rest of each line that begins with the word."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split(" ")[0] == word]


class FailsOnOrder(gym.Env):
    """Episodes of five steps with the reward 1; the observation is [worker index, steps].

    Executes the orders `raise`, `hang`, `die` in a step, and `refuse` in its constructor.
    """

    observation_space = gym.spaces.Box(-1.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, context: EnvContext) -> None:
        self.orders: Orders = context["orders"]
        self.index = context.worker_index
        self.orders.note("made", self.index, os.getpid())
        if self.orders.take("refuse", self.index):
            raise LookupError("no license")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        orders, index = self.orders, self.index
        if orders.take("raise", index):
            raise ValueError("a door fell off")
        if orders.take("hang", index):
            time.sleep(600)
        if orders.take("die", index):
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return self._obs(), 1.0, self.count == 5, False, {}

    def _obs(self):
        return np.array([self.index, self.count], np.float32)


class Counting(Policy):
    """Its weights are the number of its updates. Executes `policy_raises` and `policy_nan`, by worker index."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.updates = 0

    def compute_actions(self, obs_batch):  # type: ignore[override]
        orders, index = self.config.env_config["orders"], int(obs_batch[0, 0])
        if orders.take("policy_raises", index):
            raise KeyError("which state?")
        if orders.take("policy_nan", index):
            return np.full(len(obs_batch), np.nan), [], {}
        return np.zeros(len(obs_batch), np.int64), [], {}

    def learn_on_batch(self, batch):
        self.updates += 1
        return {"rows": batch.count}

    def compute_gradients(self, batch):
        return {}, {"rows": batch.count}

    def apply_gradients(self, gradients):
        self.updates += 1

    def get_weights(self):
        return {"updates": self.updates}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        self.updates = weights["updates"]


class Still(Counting):
    """The same for all observations and without orders."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.zeros(len(obs_batch), np.int64), [], {}


def config_for(orders: Orders, **changes: Any) -> dict[str, Any]:
    """Two workers that reserve no CPU, and a policy without compilation."""
    workers = {"num_workers": 2, "num_cpus_per_worker": 0, "rollout_fragment_length": 10}
    if changes.get("recreate_failed_workers", True):
        workers["delay_between_worker_restarts_s"] = 0.1
    own = {"env_config": {"orders": orders}, "multiagent": {"policies": {"default_policy": (Counting, None, None, {})}}}
    return {**workers, **own, "model": ModelConfig(fcnet_hiddens=(4,)), "seed": 0, **changes}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO": {"train_batch_size": 20, "sgd_minibatch_size": 20},
    "IMPALA": {"train_batch_size": 20, "timesteps_per_iteration": 100},
    "A3C": {"timesteps_per_iteration": 100},
}
"""Settings of each algorithm for small iterations."""
