"""Iterations of sb3-contrib's ARS, which evaluates one candidate after another, on standardized observations."""

import argparse
import json

import torch
from sb3_contrib import ARS
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--directions", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--hiddens", type=json.loads, default=[])
    args = parser.parse_args()

    torch.set_num_threads(1)  # several threads do not help for a single row
    envs = VecNormalize(make_vec_env(args.env, n_envs=1, seed=0), norm_reward=False)
    policy, settings = ("MlpPolicy", {"net_arch": args.hiddens}) if args.hiddens else ("LinearPolicy", {})
    model = ARS.make_policy(
        policy, envs, n_delta=args.directions, delta_std=0.05, learning_rate=0.02, policy_kwargs=settings, seed=0
    )

    def iteration() -> int:
        before = model.num_timesteps
        model.learn(1, reset_num_timesteps=False)  # at least one step: one iteration
        return model.num_timesteps - before

    for _ in range(args.warm_up):
        iteration()
    serve_rates(iteration, threads=1, versions=versions("sb3-contrib", "torch", "gymnasium", "mujoco", "numpy"))


if __name__ == "__main__":
    main()
