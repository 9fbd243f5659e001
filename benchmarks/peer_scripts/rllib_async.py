"""Env steps per second that RLlib's IMPALA or APPO trains on (new API stack, its learner in this process)."""

import argparse

import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.protocol import serve_rates, versions

_CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}
_ITERATION_S = 1.0  # shorter than its default of 10, so that a round has several


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=list(_CONFIGS), required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
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
        .reporting(min_time_s_per_iteration=_ITERATION_S)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    counted = 0

    def collect() -> int:
        nonlocal counted
        result = algorithm.train()
        learned = result.get("learners", {}).get("__all_modules__", {})
        if not learned:
            return 0
        # RLlib also counts the row that it adds to each segment, and APPO can train on a step more than once.
        once = min(learned["num_env_steps_trained_lifetime"], result["num_env_steps_sampled_lifetime"])
        fresh, counted = int(once) - counted, int(once)
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
