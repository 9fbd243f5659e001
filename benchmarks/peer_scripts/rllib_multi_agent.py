"""RLlib's `MultiAgentEnvRunner` (new API stack, in this process): many agents of a free env, one shared policy."""

import argparse

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner

from benchmarks.free_env import FreeAgents
from benchmarks.protocol import serve_rates, versions


class FreeEnv(FreeAgents, MultiAgentEnv):
    """`FreeAgents` as a multi-agent env of RLlib."""

    def __init__(self, config=None):
        MultiAgentEnv.__init__(self)
        FreeAgents.__init__(self, **(config or {}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-agents", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    config = (
        PPOConfig()
        .environment(FreeEnv, env_config={"num_agents": args.num_agents})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=args.fragment)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, *_, **__: "shared")
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .debugging(seed=0)
    )
    runner = MultiAgentEnvRunner(config=config)

    def collect() -> int:
        steps = sum(episode.agent_steps() for episode in runner.sample())
        # The algorithm reads the metrics once per iteration; unread metrics would accumulate.
        runner.get_metrics()
        return steps

    serve_rates(collect, threads=torch.get_num_threads(), versions=versions("ray", "torch", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
