"""A whole PPO run of rollax at RL Zoo's CartPole settings, from the start of the process to the end of training."""

import argparse

from benchmarks.protocol import Link, versions


def main() -> None:
    """Trains, reports the end, then evaluates and reports the reward."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    link = Link()

    from rollax import PPOTrainer

    trainer = PPOTrainer(
        env=args.env,
        config={
            "num_envs_per_worker": 8,
            "rollout_fragment_length": 32,
            "train_batch_size": 256,
            "sgd_minibatch_size": 256,
            "num_sgd_iter": 20,
            "gamma": 0.98,
            "lambda": 0.8,
            "lr_schedule": [[0, 1e-3], [args.steps, 0.0]],
            "clip_param_schedule": [[0, 0.2], [args.steps, 0.0]],
            "entropy_coeff": 0.0,
            "vf_loss_coeff": 0.5,
            "grad_clip": 0.5,
            "kl_coeff": 0.0,
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
            "seed": args.seed,
        },
    )
    while trainer.train()["timesteps_total"] < args.steps:
        pass
    link.send(event="finished")
    reward = trainer.evaluate(num_episodes=24)["episode_reward_mean"]
    trainer.stop()
    installed = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    link.send(event="facts", facts={"greedy_reward": reward, "versions": installed})


if __name__ == "__main__":
    main()
