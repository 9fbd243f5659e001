"""Stable-Baselines3's `collect_rollouts` with PPO's default actor and critic (64x64 tanh) on a `DummyVecEnv`."""

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    envs = make_vec_env(args.env, n_envs=args.num_envs, seed=0)
    steps = args.num_envs * args.fragment
    model = PPO.make_policy("MlpPolicy", envs, n_steps=args.fragment, batch_size=steps, device="cpu", seed=0)
    _, callback = model._setup_learn(total_timesteps=10**9)

    def collect() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=args.fragment)
        return steps

    serve_rates(
        collect, threads=torch.get_num_threads(), versions=versions("stable-baselines3", "torch", "gymnasium", "numpy")
    )


if __name__ == "__main__":
    main()
