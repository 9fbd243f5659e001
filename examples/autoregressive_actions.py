"""Penalty kicks: an action of two parts, of which the second depends on the first, by an own action distribution.

A goal needs a side that the keeper does not expect, and the foot that fits the side. Parts that are drawn independently
of each other rarely fit unless the side is always the same. Here the foot is drawn given the side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from rollax import PPOTrainer
from rollax.algorithms.ppo import PPO
from rollax.models.distributions import ActionDistribution
from rollax.models.distributions.discrete import Categorical

SIDES = 3
KICKS = 10


class PenaltyKicks(gym.Env):
    """Ten kicks against a keeper who jumps to the side that was chosen most often in the episode; reward 1 for a goal.

    Uniform sides with the fitting foot score 6.7 goals, sides and feet that are independent of each other at most 2.6.
    """

    observation_space = gym.spaces.Box(0, 0, (1,), np.float32)  # nothing, so that sides must be random
    action_space = gym.spaces.MultiDiscrete([SIDES, SIDES])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.chosen = np.zeros(SIDES)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        side, foot = map(int, action)
        keeper = int(np.argmax(self.chosen + self.np_random.random(SIDES)))  # one of them if several are equal
        self.chosen[side] += 1
        is_goal = foot == side and keeper != side
        return np.zeros(1, np.float32), float(is_goal), self.chosen.sum() == KICKS, False, {}


@dataclass(frozen=True)
class FirstThenSecond(ActionDistribution):
    """p(a, b) = p(a) p(b | a) of two choices.

    `inputs` are the logits of a, [B, n], and then those of b for each a, [B, n * m].
    """

    first: Categorical
    second: Categorical

    @property
    def num_inputs(self) -> int:
        return self.first.n * (1 + self.second.n)

    @property
    def num_noise(self) -> int:
        return 2

    def _sample(self, inputs: jax.Array, noise: jax.Array) -> jax.Array:
        a = self.first.sample(self._of_first(inputs), noise[:, :1])
        return jnp.stack([a, self.second.sample(self._of_second(inputs, a), noise[:, 1:])], axis=1)

    def _mode(self, inputs: jax.Array) -> jax.Array:
        a = self.first.mode(self._of_first(inputs))
        return jnp.stack([a, self.second.mode(self._of_second(inputs, a))], axis=1)

    def _logp(self, inputs: jax.Array, actions: jax.Array) -> jax.Array:
        a, b = jnp.asarray(actions).T
        return self.first.logp(self._of_first(inputs), a) + self.second.logp(self._of_second(inputs, a), b)

    def _entropy(self, inputs: jax.Array) -> jax.Array:
        """H(a) + Σ_a p(a) H(b | a)."""
        of_second = self.second.entropy(self._rows_of_second(inputs))
        return self.first.entropy(self._of_first(inputs)) + self._mean_over_first(inputs, of_second)

    def _kl(self, inputs: jax.Array, other_inputs: jax.Array) -> jax.Array:
        """KL of a + Σ_a p(a) KL of b given a."""
        of_second = self.second.kl(self._rows_of_second(inputs), self._rows_of_second(other_inputs))
        of_first = self.first.kl(self._of_first(inputs), self._of_first(other_inputs))
        return of_first + self._mean_over_first(inputs, of_second)

    def _of_first(self, inputs: jax.Array) -> jax.Array:
        return inputs[:, : self.first.n]

    def _rows_of_second(self, inputs: jax.Array) -> jax.Array:
        """[B * n, m] logits of b, given each a in turn."""
        return inputs[:, self.first.n :].reshape(-1, self.second.n)

    def _of_second(self, inputs: jax.Array, a: jax.Array) -> jax.Array:
        """[B, m] logits of b given a."""
        given = self._rows_of_second(inputs).reshape(-1, self.first.n, self.second.n)
        return jnp.take_along_axis(given, a[:, None, None], axis=1)[:, 0]

    def _mean_over_first(self, inputs: jax.Array, values: jax.Array) -> jax.Array:
        """[B] means over a of values [B * n]."""
        return (jax.nn.softmax(self._of_first(inputs)) * values.reshape(-1, self.first.n)).sum(-1)


class Kicker(PPO):
    """PPO with the distribution above; the model gets its number of outputs from it."""

    @cached_property
    def distribution(self) -> ActionDistribution:
        assert isinstance(self.action_space, gym.spaces.MultiDiscrete)
        first, second = map(int, self.action_space.nvec)
        return FirstThenSecond(Categorical(first), Categorical(second))


class KickerTrainer(PPOTrainer):
    """PPO with `Kicker`."""

    policy_class = Kicker


def main(trainer_class: type[PPOTrainer] = KickerTrainer, iterations: int = 60) -> float:
    """Trains, and returns the mean number of goals in the last 100 episodes, with random sides."""
    config: dict[str, Any] = {"num_envs_per_worker": 16, "train_batch_size": 1600, "sgd_minibatch_size": 400}
    config |= {"num_sgd_iter": 8, "lr": 1e-3, "gamma": 0.9, "entropy_coeff": 0.02, "seed": 0}
    with trainer_class(env=PenaltyKicks, config=config) as trainer:
        results = [trainer.train() for _ in range(iterations)]
        return results[-1]["episode_reward_mean"] or 0.0


if __name__ == "__main__":
    goals, independent = main(), main(PPOTrainer)
    print(f"{goals:.1f} goals in {KICKS} kicks; {independent:.1f} with independent parts")
    assert goals >= 6.0 > 4.0 >= independent
