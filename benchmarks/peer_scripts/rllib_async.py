"""Env steps per second that RLlib's IMPALA or APPO trains on (new API stack, its learner in this process)."""

import argparse

import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.protocol import serve_rates, versions

_CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=list(_CONFIGS), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seconds-per-iteration", type=float, default=1.0)
    args = parser.parse_args()

    ray.init(address="local", num_cpus=args.num_workers + 2, include_dashboard=False)
    config = (
        _CONFIGS[args.algorithm]()
        .environment(args.env)
        .env_runners(num_env_runners=args.num_workers, num_envs_per_env_runner=args.num_envs)
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .reporting(min_time_s_per_iteration=args.seconds_per_iteration)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    counted = 0

    def collect() -> int:
        nonlocal counted
        result = algorithm.train()
        learned = result.get("learners", {}).get("__all_modules__", {})
        # RLlib counts the row that it adds to each piece, and APPO a step each time it is learned from: a step counts
        # once here.
        trained = int(learned.get("num_env_steps_trained_lifetime", 0))
        fresh = min(trained, int(result["num_env_steps_sampled_lifetime"])) - counted
        if not fresh and not learned:
            return 0
        counted += fresh
        return fresh

    while not collect():
        pass  # its actors are still starting

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
