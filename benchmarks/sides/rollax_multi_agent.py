"""rollax's `RolloutWorker.sample`: many agents of one free env, one shared 64x64 tanh policy."""

import argparse
from typing import Any

from benchmarks.free_env import ACTION_SPACE, OBSERVATION_SPACE, FreeAgents
from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-agents", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    from rollax import MultiAgentEnv, RolloutWorker
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig

    class FreeEnv(FreeAgents, MultiAgentEnv):
        """`FreeAgents` as a multi-agent env of rollax."""

    def create(_context: Any) -> FreeEnv:
        return FreeEnv(args.num_agents)

    config = PPOConfig(
        num_envs_per_worker=1,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        seed=0,
    )
    worker = RolloutWorker(
        create,
        {"shared": (PPO, OBSERVATION_SPACE, ACTION_SPACE, {})},
        policy_mapping_fn=lambda agent_id: "shared",
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
