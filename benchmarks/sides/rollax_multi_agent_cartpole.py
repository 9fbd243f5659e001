"""rollax's `RolloutWorker.sample` over multi-agent cart-poles: two PPO policies with a 64x64 tanh actor and critic."""

import argparse
from typing import Any

from benchmarks.multi_agent_cartpole import ManyCartPoles
from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-agents", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    from rollax import MultiAgentEnv, RolloutWorker
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig

    class CartPoles(ManyCartPoles, MultiAgentEnv):
        """`ManyCartPoles` as a multi-agent env of rollax."""

    def create(_context: Any) -> CartPoles:
        return CartPoles(args.num_agents)

    config = PPOConfig(
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(
        create,
        {"even": PPO, "odd": PPO},
        policy_mapping_fn=lambda agent_id: "odd" if agent_id % 2 else "even",
        config=config,
    )

    def collect() -> int:
        steps = worker.sample().agent_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "jax", "flax", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
