"""PPO on CartPole-v1: the greedy policy balances the pole for at least 475 of 500 steps after at most 100,000 steps."""

from __future__ import annotations

from rollax import PPOConfig, PPOTrainer


def main(iterations: int = 97) -> float:
    """Trains and returns the best mean reward of 20 greedy episodes during training."""
    config = PPOConfig(
        num_envs_per_worker=8,
        train_batch_size=1024,
        sgd_minibatch_size=256,
        num_sgd_iter=20,
        lr=1e-3,
        gamma=0.98,
        lambda_=0.8,
        evaluation_interval=5,
        evaluation_num_episodes=20,
        seed=0,
    )
    best = 0.0
    with PPOTrainer(env="CartPole-v1", config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            if result["evaluation"]:
                best = max(best, result["evaluation"]["episode_reward_mean"])
                speed = f"{result['env_steps_per_s']:,.0f} steps/s"
                print(f"{result['timesteps_total']:7,} steps  best greedy reward {best:.1f}  {speed}")
            if best >= 475:
                break
    return best


if __name__ == "__main__":
    reward = main()
    print(f"best greedy reward: {reward:.1f}")
    assert reward >= 475
