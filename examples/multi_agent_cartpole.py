"""Several carts in one environment and two policies, one for even agents and one for odd agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollax import MultiAgentEnv, PPOTrainer


class MultiAgentCartPole(MultiAgentEnv):
    """Each agent balances its own pole and terminates when it falls; the episode ends with the last agent."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.carts = {agent: gym.make("CartPole-v1") for agent in range(env_config["num_agents"])}
        self.possible_agents = list(self.carts)
        self.observation_space = self.carts[0].observation_space
        self.action_space = self.carts[0].action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.balancing = set(self.carts)
        seeds = {agent: None if seed is None else seed + agent for agent in self.carts}
        return {agent: cart.reset(seed=seeds[agent])[0] for agent, cart in self.carts.items()}, {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds = {}, {}, {}, {}
        for agent, action in actions.items():
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], _ = self.carts[agent].step(action)
            if terminateds[agent] or truncateds[agent]:
                self.balancing.remove(agent)
        # "__all__" applies to every agent: in terminateds it would mark an agent that ran out of time as fallen.
        over, out_of_time = not self.balancing, any(truncateds.values())
        terminateds["__all__"], truncateds["__all__"] = over and not out_of_time, over and out_of_time
        return obs, rewards, terminateds, truncateds, {}

    def close(self) -> None:
        for cart in self.carts.values():
            cart.close()


def even_or_odd(agent: int) -> str:
    """Returns the policy of an agent."""
    return "odd" if agent % 2 else "even"


CONFIG: dict[str, Any] = {
    "env_config": {"num_agents": 2},
    "multiagent": {"policies": {"even": None, "odd": None}, "policy_mapping_fn": even_or_odd},
    "num_envs_per_worker": 8,
    "count_steps_by": "agent_steps",
    "train_batch_size": 2048,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 20,
    "lr": 1e-3,
    "gamma": 0.98,
    "lambda": 0.8,
}


def main(iterations: int = 120) -> float:
    """Trains and returns the best sum of both agents' rewards, averaged over 20 greedy episodes: at most 1000."""
    config = {**CONFIG, "evaluation_interval": 5, "evaluation_num_episodes": 20, "seed": 0}
    best = 0.0
    with PPOTrainer(env=MultiAgentCartPole, config=config) as trainer:
        for _ in range(iterations):
            result = trainer.train()
            if result["evaluation"]:
                best = max(best, result["evaluation"]["episode_reward_mean"])
                by_policy = {name: round(reward or 0) for name, reward in result["policy_reward_mean"].items()}
                print(
                    f"{result['timesteps_total']:7,} agent steps  best greedy reward {best:.0f}  by policy {by_policy}"
                )
            if best >= 900:
                break
    return best


if __name__ == "__main__":
    reward = main()
    print(f"best greedy reward: {reward:.0f}")
    assert reward >= 800
