"""A whole PPO run at RL Zoo's CartPole settings, with Stable-Baselines3 or with SBX, which has the same interface."""

import argparse

from benchmarks.protocol import Link, versions


def linear(initial):
    """RL Zoo's `lin_<initial>`: a value that falls to 0 with the remaining progress."""
    return lambda progress_remaining: progress_remaining * initial


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=["sb3", "sbx"], required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    link = Link()

    if args.library == "sbx":
        from sbx import PPO

        installed = versions("sbx-rl", "stable-baselines3", "jax", "gymnasium", "numpy")
    else:
        from stable_baselines3 import PPO

        installed = versions("stable-baselines3", "torch", "gymnasium", "numpy")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    model = PPO.make_policy(
        "MlpPolicy",
        make_vec_env(args.env, n_envs=8, seed=args.seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=linear(1e-3),
        clip_range=linear(0.2),
        device="cpu",
        seed=args.seed,
    )
    model.learn(total_timesteps=args.steps)
    link.send(event="finished")
    envs = make_vec_env(args.env, n_envs=8, seed=args.seed + 1000)
    reward, _ = evaluate_policy(model, envs, n_eval_episodes=24)
    facts = {"greedy_reward": float(reward), "versions": installed}
    if args.library == "sb3":
        import torch

        facts["threads"] = torch.get_num_threads()
    link.send(event="facts", facts=facts)


if __name__ == "__main__":
    main()
