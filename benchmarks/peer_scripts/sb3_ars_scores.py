"""sb3-contrib's ARS: greedy evaluations at equal intervals during the search, as a JSON list of (steps, score)."""

import argparse
import json
import sys

import numpy as np
import torch
from sb3_contrib import ARS
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="rollax's config keys")
    parser.add_argument("--budget", type=int, required=True, help="steps")
    parser.add_argument("--evaluations", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True, help="of each evaluation")
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr

    torch.set_num_threads(1)  # several threads do not help for a single row
    settings = args.settings
    envs = make_vec_env(args.env, n_envs=1, seed=args.seed)
    evaluated = make_vec_env(args.env, n_envs=1, seed=1000 * (args.seed + 1))
    if settings["observation_filter"] == "MeanStdFilter":
        envs = VecNormalize(envs, norm_reward=False)
        evaluated = VecNormalize(evaluated, norm_reward=False, training=False)
    model = ARS.make_policy(
        "LinearPolicy",
        envs,
        n_delta=settings["num_directions"],
        n_top=settings["directions_used"],
        learning_rate=settings["lr"],
        delta_std=settings["noise_stdev"],
        seed=args.seed,
    )
    curve = []
    for number in range(1, args.evaluations + 1):
        steps = args.budget * number // args.evaluations - model.num_timesteps
        model.learn(max(steps, 1), reset_num_timesteps=number == 1)  # whole iterations, at least one
        if isinstance(envs, VecNormalize):
            sync_envs_normalization(envs, evaluated)
        returns, _ = evaluate_policy(model, evaluated, args.episodes, return_episode_rewards=True, warn=False)
        curve.append((model.num_timesteps, float(np.mean(returns))))
        print(f"{args.env} seed {args.seed}: {curve[-1]}", file=sys.stderr, flush=True)
    print(json.dumps(curve), file=answers)


if __name__ == "__main__":
    main()
