"""rollax's `RolloutWorker.sample` in PettingZoo's tic-tac-toe: one masked PPO policy plays both sides."""

import argparse
from typing import Any

import pettingzoo

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    from rollax import RolloutWorker
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig

    def create(_context: Any) -> Any:
        return pettingzoo.make("aec", "classic/tictactoe-v3")

    config = PPOConfig(
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(create, PPO, config=config)

    def collect() -> int:
        steps = worker.sample().agent_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "jax", "flax", "pettingzoo", "numpy"))


if __name__ == "__main__":
    main()
