"""Off-policy training at RL Zoo's settings, with Stable-Baselines3 or with SBX: environment steps and their updates."""

import argparse
import json

import numpy as np

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=["sb3", "sbx"], required=True)
    parser.add_argument("--algorithm", choices=["SAC", "TD3", "DDPG", "DQN"], required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument(
        "--settings", type=json.loads, required=True, help="keyword arguments of the algorithm, as JSON"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="deviation of the noise that is added to actions")
    parser.add_argument("--steps", type=int, required=True, help="environment steps of one call of learn()")
    args = parser.parse_args()

    if args.library == "sbx":
        import sbx as library

        installed = versions("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")
    else:
        import stable_baselines3 as library

        installed = versions("stable-baselines3", "torch", "gymnasium", "numpy")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    env = make_vec_env(args.env, n_envs=1, seed=0)
    settings = dict(args.settings)
    if args.noise:
        width = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, args.noise))
    model = getattr(library, args.algorithm)("MlpPolicy", env, device="cpu", seed=0, **settings)

    def collect() -> int:
        model.learn(total_timesteps=args.steps, reset_num_timesteps=False)
        return args.steps

    facts = {"versions": installed}
    if args.library == "sb3":
        import torch

        facts["threads"] = torch.get_num_threads()
    serve_rates(collect, **facts)


if __name__ == "__main__":
    main()
