"""User-defined classes that a checkpoint refers to: a policy in plain NumPy, and a model."""

import math

import gymnasium as gym
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from pydantic import Field

from rollax import JaxPolicy, Outputs, Policy
from rollax.algorithms.ppo import PPO, PPOConfig, PPOTrainer


class Lean(Policy):
    """Pushes the cart by the sign of the last observed number minus a limit, which it learns."""

    def __init__(self, observation_space, action_space, config=None):
        super().__init__(observation_space, action_space, config)
        self.limit, self.updates = 0.0, 0

    def compute_actions(self, obs_batch):
        return [int(row[-1] > self.limit) for row in obs_batch], [], {}

    def learn_on_batch(self, batch):
        self.updates += 1
        self.limit += 0.25 * batch.count
        return {"limit": self.limit}

    def get_weights(self):
        return {"limit": self.limit}

    def set_weights(self, weights):
        self.limit = weights["limit"]

    def get_state(self):
        extremes = {"best": math.inf, "worst": -math.inf, "a/b": {"c": jnp.arange(3)}, "a": {"b/c": jnp.zeros(2)}}
        return {**super().get_state(), "updates": self.updates, "list": [1, "two", None, (3.5,)], **extremes}

    def set_state(self, state):
        super().set_state(state)
        self.updates, self.restored = state["updates"], state


class CuriousConfig(PPOConfig):
    novelty: float = Field(default=0.5, ge=0, description="weight of the reward for what is new")


class Features(nnx.Module):
    """Features of an observation."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, obs):
        return self.dropout(self.layer(obs))


class CuriousPolicy(JaxPolicy):
    """PPO with random network distillation: prediction errors are rewards. It has every kind of state."""

    def __init__(self, algorithm, config):
        super().__init__(algorithm, config)
        rngs = nnx.Rngs(self.config.seed or 0)
        self.target = Features(rngs)
        self.nets = {"predictor": Features(rngs), "unused": [nnx.Linear(2, 2, rngs=rngs)]}
        self.nnx_optimizer = nnx.Optimizer(self.nets["predictor"], optax.adam(1e-3), wrt=nnx.Param)
        self.scale = jnp.ones(())
        self.scale_state = optax.sgd(0.1, momentum=0.9).init(self.scale)
        self.best = nnx.Param(jnp.zeros(()))
        self.key = jax.random.key(0)

    def learn_on_batch(self, batch):
        obs = jnp.asarray(batch["obs"])
        goal = self.target(obs)
        loss, gradients = nnx.value_and_grad(lambda net: jnp.square(net(obs) - goal).mean())(self.nets["predictor"])
        self.nnx_optimizer.update(self.nets["predictor"], gradients)
        step, self.scale_state = optax.sgd(0.1, momentum=0.9).update(loss * self.scale, self.scale_state)
        self.scale = self.scale + step
        self.key, used = jax.random.split(self.key)
        self.best.set_value(self.best.get_value() + loss + jax.random.uniform(used))
        return {**super().learn_on_batch(batch), "novelty": float(loss * self.scale + self.best.get_value())}


class Curious(PPO):
    policy_class = CuriousPolicy
    config_class = CuriousConfig


class CuriousTrainer(PPOTrainer):
    name = "Curious"
    config_class = CuriousConfig
    policy_class = Curious


class Linear(nnx.Module):
    """The smallest model there is."""

    def __init__(self, observation_space, num_outputs, *, rngs, scale=1.0):
        self.policy = nnx.Linear(4, num_outputs, rngs=rngs)
        self.value = nnx.Linear(4, 1, rngs=rngs)
        self.scale = scale

    def __call__(self, obs):
        return Outputs(self.scale * self.policy(obs), self.value(obs)[:, 0])


class Pole(gym.Wrapper):
    """CartPole as a class that can be imported."""

    def __init__(self, context):
        super().__init__(gym.make("CartPole-v1"))
