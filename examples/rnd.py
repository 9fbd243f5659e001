"""PPO with random network distillation (RND) on DeepSea of size 10: 0.99 after 25,600 steps; PPO alone stays at 0.

Source: Burda et al. (2018), arXiv:1810.12894. The bonus of a step is the error of a predictor network, which learns the
outputs of a fixed random network, for the next observation: new observations have larger errors. Bonuses are divided by
the running deviation of their discounted sums, and have a value head whose advantages do not end with the episode. The
policy learns from the sum of the advantages of both heads. Deviations: γ is the same for both, one-hot observations are
not standardized, and the predictor learns from all rows. The key `exploration_bonus` has the method without them.
"""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rollax import PPO, PPOTrainer
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.add_advantages import add_advantages
from rollax.policy.running_returns import RunningReturns

SIZE = 10


class DeepSea(gym.Env):
    """A diver sinks one row at each step, to the left, or for 0.01 / size to the right. Only steps to the right find 1.

    Which of the two actions is right differs between cells. Osband et al. (2020), bsuite, arXiv:1908.03568.
    """

    def __init__(self, size=SIZE):
        self.size, self.action_space = size, gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0, 1, (size * size,), np.float32)
        self.cells = np.eye(size * (size + 1), size * size, dtype=np.float32)  # one-hot, and zeros below the last row
        self.right_actions = np.random.default_rng(0).integers(2, size=(size, size))

    def reset(self, *, seed=None, options=None):
        self.row = self.column = 0
        return self.cells[0], {}

    def step(self, action):
        right = action == self.right_actions[self.row, self.column]
        treasure = right and self.column == self.size - 1
        self.row, self.column = self.row + 1, min(max(self.column + (1 if right else -1), 0), self.size - 1)
        obs = self.cells[self.row * self.size + self.column]
        return obs, treasure - 0.01 / self.size * right, self.row == self.size, False, {}


class RND(PPO):
    value_heads = 2
    statistics = (*PPO.statistics, "predictor_loss")
    reads = (*PPO.reads, "new_obs")

    @property
    def samples(self):
        return (super().samples or frozenset()) | {"slot"}

    def make_model(self, rngs):
        model = super().make_model(rngs)
        for part in ("target", "predictor"):
            first, second = nnx.Linear(SIZE * SIZE, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)
            setattr(model, part, nnx.Sequential(first, jax.nn.relu, second))
        return model

    def make_running_statistics(self):
        return {"bonuses": RunningReturns(self.config.gamma, episodic=False)}

    def bonus(self, model, obs):
        return jnp.square(model.predictor(obs) - jax.lax.stop_gradient(model.target(obs))).mean(axis=-1)

    def postprocess(self, fragment, values):  # after `prepare`, so `normalize_rewards` has its effect
        bonuses, returns = values.run("bonus", fragment["new_obs"]), values.statistics["bonuses"]
        returns.add_rewards(fragment, bonuses)
        rewards = np.stack([fragment["rewards"], bonuses / returns.deviation], axis=1)
        gamma, lambda_ = self.config.gamma, self.config.lambda_
        add_advantages(fragment, values, gamma=gamma, lambda_=lambda_, rewards=rewards, episodic=(True, False))
        fragment["advantages"] = fragment["advantages"].sum(axis=1)
        return fragment

    def loss(self, model, out, batch, mask, coefficients):
        loss, stats = super().loss(model, out, batch, mask, coefficients)
        predictor_loss = masked_mean(self.bonus(model, batch["new_obs"]), mask)
        return loss + predictor_loss, {**stats, "predictor_loss": predictor_loss}


class RNDTrainer(PPOTrainer):
    name, policy_class = "RND", RND


CONFIG = {"num_envs_per_worker": 8, "train_batch_size": 640, "sgd_minibatch_size": 160, "num_sgd_iter": 4, "lr": 1e-3}


def main(iterations: int = 40, seed: int = 0) -> float:
    """Trains and returns the mean return of 20 greedy episodes."""
    with RNDTrainer(env=DeepSea, config={**CONFIG, "seed": seed}) as trainer:
        trainer.fit({"training_iteration": iterations})
        return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    assert main() >= 0.9
