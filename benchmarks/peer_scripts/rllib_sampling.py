"""RLlib's `SingleAgentEnvRunner` (new API stack, in this process) sampling with a 64x64 tanh network."""

import argparse

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    config = (
        PPOConfig()
        .environment(args.env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=args.num_envs, rollout_fragment_length=args.fragment)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .debugging(seed=0)
    )
    runner = SingleAgentEnvRunner(config=config)

    def collect() -> int:
        steps = sum(len(episode) for episode in runner.sample())
        # The algorithm reads the metrics once per iteration; unread metrics would accumulate.
        runner.get_metrics()
        return steps

    serve_rates(collect, threads=torch.get_num_threads(), versions=versions("ray", "torch", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
