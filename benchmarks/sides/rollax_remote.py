"""rollax's `RolloutWorker.sample` over environments that sleep in every step: remote ones, or one in the process."""

import argparse
import time
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.free_env import ACTION_SPACE, OBSERVATION_SPACE
from benchmarks.protocol import serve_rates, versions

OBSERVATION = np.zeros(4, np.float32)


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--sleep-ms", type=float, required=True)
    parser.add_argument("--wait-ms", type=float, help="remote sub-environments, and how long they wait for each other")
    args = parser.parse_args()

    from rollax import RolloutWorker
    from rollax.algorithms.ppo import PPOConfig, PPOPolicy
    from rollax.models.config import ModelConfig

    class Sleeper(gym.Env):
        """Costs nothing but time."""

        observation_space, action_space = OBSERVATION_SPACE, ACTION_SPACE

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
            self.count = 0
            return OBSERVATION, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            time.sleep(args.sleep_ms / 1000)
            self.count += 1
            return OBSERVATION, 1.0, self.count == 100, False, {}

    config = PPOConfig(
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=20,
        remote_worker_envs=args.wait_ms is not None,
        remote_env_batch_wait_ms=args.wait_ms or 0.0,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(Sleeper, PPOPolicy, config=config)

    def collect() -> int:
        steps = worker.sample().env_steps
        # A trainer reads the metrics once per iteration; left unread, they would pile up.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "ray", "jax", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
