"""One training iteration of RLlib's PPO (new API stack, env runner and learner in this process)."""

import argparse

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.protocol import serve_durations, versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--train-batch", type=int, required=True)
    parser.add_argument("--minibatch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    args = parser.parse_args()
    hiddens = [args.width, args.width]

    config = (
        PPOConfig()
        .environment(args.env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=args.num_envs)
        .learners(num_learners=0)
        .training(train_batch_size=args.train_batch, minibatch_size=args.minibatch, num_epochs=args.epochs)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=hiddens, fcnet_activation="tanh", vf_share_layers=False)
        )
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    serve_durations(
        algorithm.train,
        warm_up=1,
        threads=torch.get_num_threads(),
        versions=versions("ray", "torch", "gymnasium", "numpy"),
    )
    algorithm.stop()


if __name__ == "__main__":
    main()
