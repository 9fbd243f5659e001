"""Two algorithms at once: PPO trains one agent of an environment, PG the other, and they copy weights to each other."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollax import MultiAgentEnv, PGPolicy, PGTrainer, PolicySpec, PPOPolicy, PPOTrainer


class TwoCarts(MultiAgentEnv):
    """Two agents, each with a CartPole-v1 of its own; the episode is over when both poles have fallen."""

    possible_agents = ("left", "right")

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.carts: dict[Any, gym.Env] = {agent: gym.make("CartPole-v1") for agent in ("left", "right")}
        self.observation_space = self.carts["left"].observation_space
        self.action_space = self.carts["left"].action_space

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.balancing = set(self.carts)
        seeds = {"left": seed, "right": None if seed is None else seed + 1}
        return {agent: cart.reset(seed=seeds[agent])[0] for agent, cart in self.carts.items()}, {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds = {}, {}, {}, {}
        for agent, action in actions.items():
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], _ = self.carts[agent].step(action)
            if terminateds[agent] or truncateds[agent]:
                self.balancing.remove(agent)
        over, out_of_time = not self.balancing, any(truncateds.values())
        terminateds["__all__"], truncateds["__all__"] = over and not out_of_time, over and out_of_time
        return obs, rewards, terminateds, truncateds, {}


POLICY_OF = {"left": "ppo_policy", "right": "pg_policy"}


def config(policy_to_train: str, **changes: Any) -> dict[str, Any]:
    """Both trainers hold both policies, each in its own algorithm's class, and train one of them."""
    return {
        "multiagent": {
            "policies": {"ppo_policy": PolicySpec(PPOPolicy), "pg_policy": PolicySpec(PGPolicy)},
            "policy_mapping_fn": lambda agent: POLICY_OF[agent],
            "policies_to_train": [policy_to_train],
        },
        "num_envs_per_worker": 8,
        "seed": 0,
        **changes,
    }


def copy_weights(ppo: PPOTrainer, pg: PGTrainer) -> None:
    """Each of them acts beside what the other has learned."""
    pg.set_weights(ppo.get_weights(["ppo_policy"]))
    ppo.set_weights(pg.get_weights(["pg_policy"]))


def main(iterations: int = 50) -> float:
    """Trains, and returns the mean reward of the weaker policy in 20 greedy episodes."""
    ppo = PPOTrainer(env=TwoCarts, config=config("ppo_policy", train_batch_size=1024, lr=1e-3, gamma=0.98, lambda_=0.8))
    # One copy, so that no episode is under way while PG learns: it has no correction for actions that an older policy
    # chose, and whoever falls early waits for the other before its steps are learned from.
    pg = PGTrainer(env=TwoCarts, config=config("pg_policy", train_batch_size=1000, num_envs_per_worker=1))
    with ppo, pg:
        for iteration in range(1, iterations + 1):
            trained = ppo.train()["policy_reward_mean"]["ppo_policy"], pg.train()["policy_reward_mean"]["pg_policy"]
            copy_weights(ppo, pg)
            if iteration % 5 == 0:
                print(f"iteration {iteration:3}  mean reward: PPO {trained[0] or 0:.0f}, PG {trained[1] or 0:.0f}")
        return min(ppo.evaluate(num_episodes=20)["policy_reward_mean"].values())


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward of the weaker policy: {reward:.0f}")
    assert reward >= 150
