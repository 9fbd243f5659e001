"""One training iteration of Stable-Baselines3's PPO: sampling and learning from one batch."""

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

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

    model = PPO.make_policy(
        "MlpPolicy",
        make_vec_env(args.env, n_envs=args.num_envs, seed=0),
        n_steps=args.train_batch // args.num_envs,
        batch_size=args.minibatch,
        n_epochs=args.epochs,
        learning_rate=5e-5,
        gae_lambda=1.0,
        clip_range=0.3,
        vf_coef=1.0,
        policy_kwargs={"net_arch": [args.width, args.width]},
        device="cpu",
        seed=0,
    )
    serve_durations(
        lambda: model.learn(total_timesteps=args.train_batch, reset_num_timesteps=False),
        warm_up=1,
        threads=torch.get_num_threads(),
        versions=versions("stable-baselines3", "torch", "gymnasium", "numpy"),
    )


if __name__ == "__main__":
    main()
