"""A centralized critic, by a config key and by hand: it observes both agents, which act on their own observations.

The two-step game: the first action of the first agent leads to a state in which both earn 7 with any actions, or to a
state in which they earn 8 if both dare, 1 if one dares and 0 if none does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rollax import PPO, Fragment, JaxPolicy, MultiAgentEnv, Outputs, Policy, PolicySpec, PPOTrainer, SampleBatch

AGENTS = ("first", "second")
STATES, ACTIONS = 3, 2
BOTH_DARE = [[0.0, 1.0], [1.0, 8.0]]


class TwoStepGame(MultiAgentEnv):
    """Both agents observe the state: 0 at first, then 1 (safe) or 2 (daring)."""

    observation_space = gym.spaces.Discrete(STATES)
    action_space = gym.spaces.Discrete(ACTIONS)
    possible_agents = AGENTS

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.state = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.state = 0
        return self._seen(), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        over, earned = self.state > 0, 0.0
        if self.state == 0:
            self.state = 1 + int(actions["first"])
        else:
            earned = 7.0 if self.state == 1 else BOTH_DARE[actions["first"]][actions["second"]]
        rewards = dict.fromkeys(AGENTS, earned / 2)
        return self._seen(), rewards, {"__all__": over}, {"__all__": False}, {}

    def _seen(self) -> dict[str, int]:
        return dict.fromkeys(AGENTS, self.state)


class ActorWithCritic(nnx.Module):
    """An actor with the state as input, and a `critic` with the column `critic_obs`, which `CriticByHand` fills."""

    def __init__(self, observation_space: gym.Space, num_outputs: int, *, rngs: nnx.Rngs) -> None:
        self.policy_head = nnx.Linear(STATES, num_outputs, kernel_init=nnx.initializers.zeros, rngs=rngs)
        self.hidden = nnx.Linear(2 * STATES + ACTIONS, 32, rngs=rngs)
        self.value_head = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, obs: jax.Array) -> Outputs:
        return Outputs(self.policy_head(jax.nn.one_hot(obs, STATES)))  # the critic computes the values

    def critic(self, critic_obs: jax.Array) -> jax.Array:
        return self.value_head(jnp.tanh(self.hidden(critic_obs))).squeeze(-1)


class CriticByHandPolicy(JaxPolicy):
    """Fills the column `critic_obs` of each trajectory."""

    def postprocess_trajectory(
        self,
        sample_batch: Fragment,
        other_agent_batches: Mapping[Any, tuple[Policy, Fragment]] | None = None,
        episode: Any = None,
    ) -> SampleBatch:
        assert other_agent_batches is not None
        ((_, other),) = other_agent_batches.values()
        # Both act at every step; if agents take turns, match rows by the column `t`.
        np.testing.assert_array_equal(sample_batch["t"], other["t"])
        columns = [
            np.eye(STATES, dtype=np.float32)[sample_batch["obs"]],
            np.eye(STATES, dtype=np.float32)[other["obs"]],
            np.eye(ACTIONS, dtype=np.float32)[other["actions"]],
        ]
        sample_batch["critic_obs"] = np.concatenate(columns, axis=1)
        return super().postprocess_trajectory(sample_batch)  # values and advantages


class CriticByHand(PPO):
    policy_class = CriticByHandPolicy


def train(policy: PolicySpec, iterations: int, **changes: Any) -> float:
    """Trains and returns the sum of both agents' rewards in a greedy episode."""
    config = {
        "multiagent": {
            "policies": dict.fromkeys(AGENTS, policy),
            "policy_mapping_fn": lambda agent_id: agent_id,
        },
        "num_envs_per_worker": 16,
        "batch_mode": "complete_episodes",
        "train_batch_size": 512,
        "lr": 3e-3,
        "entropy_coeff": 0.02,
        "seed": 0,
        **changes,
    }
    with PPOTrainer(env=TwoStepGame, config=config) as trainer:
        for iteration in range(iterations):
            result = trainer.train()
            if iteration % 5 == 4:
                print(f"{result['timesteps_total']:7,} steps  mean reward {result['episode_reward_mean']:.2f}")
        return trainer.evaluate(num_episodes=1)["episode_reward_mean"]


def main(iterations: int = 30) -> float:
    """Trains with both kinds of critic and returns the lower greedy reward: 7 is safe, 8 the best."""
    print("by the key centralized_critic, for any number of agents, without a call per trajectory:")
    by_key = train(PolicySpec(), iterations, centralized_critic=True)
    print("by hand:")
    own_model = {"model": {"custom_model": ActorWithCritic}}
    by_hand = train(PolicySpec(policy_class=CriticByHand, config=own_model), iterations)
    return min(by_key, by_hand)


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward: {reward:.1f}")
    assert reward >= 7.9
