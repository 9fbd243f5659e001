"""rollax's `RolloutWorker.sample` over environments that sleep in every step: remote ones, or one in the process."""

import argparse

from benchmarks.protocol import serve_rates, versions
from benchmarks.sleeping_env import SleepingEnv


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--sleep-ms", type=float, required=True)
    parser.add_argument("--wait-ms", type=float, help="remote sub-environments, and how long they wait for each other")
    args = parser.parse_args()

    from rollax import RolloutWorker
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig

    config = PPOConfig(
        env_config={"sleep_ms": args.sleep_ms},
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=20,
        remote_worker_envs=args.wait_ms is not None,
        remote_env_batch_wait_ms=args.wait_ms or 0.0,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(SleepingEnv, PPO, config=config)

    def collect() -> int:
        steps = worker.sample().env_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "ray", "jax", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
