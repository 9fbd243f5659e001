"""A custom model, a Flax NNX module, with PPO: the greedy policy balances CartPole-v1 for at least 475 of 500 steps."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
from flax import nnx

from rollax import Outputs, PPOTrainer


class ResidualModel(nnx.Module):
    """Residual blocks with two heads, one for the action distribution and one for the value."""

    def __init__(
        self, observation_space: gym.Space, num_outputs: int, *, rngs: nnx.Rngs, width: int = 64, blocks: int = 2
    ) -> None:
        assert isinstance(observation_space, gym.spaces.Box)
        self.embedding = nnx.Linear(observation_space.shape[0], width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(blocks)])
        self.policy_head = nnx.Linear(width, num_outputs, rngs=rngs)
        self.value_head = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, obs: jax.Array) -> Outputs:
        x = jnp.tanh(self.embedding(obs))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return Outputs(policy=self.policy_head(x), value=self.value_head(x).squeeze(-1))


def main(iterations: int = 60) -> float:
    """Trains and returns the best mean reward of 10 greedy episodes during training."""
    config = {
        "model": {"custom_model": ResidualModel, "custom_model_config": {"width": 64, "blocks": 2}},
        "num_envs_per_worker": 8,
        "train_batch_size": 1024,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 10,
        "lr": 1e-3,
        "gamma": 0.98,
        "lambda": 0.9,
        "evaluation_interval": 5,
        "seed": 0,
    }
    best = 0.0
    with PPOTrainer(env="CartPole-v1", config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            if result["evaluation"]:
                best = max(best, result["evaluation"]["episode_reward_mean"])
                print(f"{result['timesteps_total']:7,} steps  best greedy reward {best:.1f}")
            if best >= 475:
                break
    return best


if __name__ == "__main__":
    reward = main()
    print(f"best greedy reward: {reward:.1f}")
    assert reward >= 475
