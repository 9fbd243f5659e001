"""Env steps per second of RLlib's DQN with remote env runners (new API stack, its learner in this process)."""

import argparse

import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.protocol import serve_rates, versions

_ITERATION_S = 1.0  # so that a round has several


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True, help="steps of each sub-environment")
    parser.add_argument("--updates-per-step", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of an update")
    parser.add_argument("--buffer-size", type=int, required=True)
    parser.add_argument("--n-step", type=int, required=True)
    args = parser.parse_args()

    ray.init(address="local", num_cpus=args.num_workers + 2, include_dashboard=False)
    # RLlib counts its driver as one more env runner when it turns this into updates for each round of sampling.
    of_rounds = args.num_workers / (args.num_workers + 1)
    config = (
        DQNConfig()
        .environment(args.env)
        .env_runners(
            num_env_runners=args.num_workers,
            num_envs_per_env_runner=args.num_envs,
            rollout_fragment_length=args.fragment,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=args.batch,
            training_intensity=args.updates_per_step * args.batch * of_rounds,
            n_step=args.n_step,
            num_steps_sampled_before_learning_starts=1000,
            target_network_update_freq=2000,
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": args.buffer_size,
                "alpha": 0.6,
                "beta": 0.4,
            },
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .reporting(min_time_s_per_iteration=_ITERATION_S, min_sample_timesteps_per_iteration=0)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    counted = 0

    def collect() -> int:
        nonlocal counted
        sampled = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        fresh, counted = sampled - counted, sampled
        return fresh

    while counted < 2000:  # it learns by then
        collect()
    serve_rates(
        collect,
        lead_in=collect,
        threads=torch.get_num_threads(),
        versions=versions("ray", "torch", "gymnasium", "numpy"),
    )
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
