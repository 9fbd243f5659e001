"""Two algorithms in one environment: PPO trains one agent, DQN the other, and the trainers exchange weights."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollax import DQN, PPO, DQNTrainer, MultiAgentEnv, PolicySpec, PPOTrainer


class TwoCarts(MultiAgentEnv):
    """Two agents with a CartPole-v1 each; the episode ends when both poles have fallen."""

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


POLICY_OF = {"left": "ppo_policy", "right": "dqn_policy"}


def config(policy_to_train: str, **changes: Any) -> dict[str, Any]:
    """Returns the config of a trainer, which has both policies and trains one of them."""
    return {
        "multiagent": {
            "policies": {"ppo_policy": PolicySpec(PPO), "dqn_policy": PolicySpec(DQN)},
            "policy_mapping_fn": lambda agent: POLICY_OF[agent],
            "policies_to_train": [policy_to_train],
        },
        "num_envs_per_worker": 8,
        "gamma": 0.98,
        "seed": 0,
        **changes,
    }


PPO_CONFIG = {"train_batch_size": 1024, "lr": 1e-3, "lambda": 0.8}
DQN_CONFIG = {
    "rollout_fragment_length": 16,
    "timesteps_per_iteration": 1024,
    "training_intensity": 0.5,
    "train_batch_size": 128,
    "n_step": 3,
    "target_network_update_freq": 200,
}


def copy_weights(ppo: PPOTrainer, dqn: DQNTrainer) -> None:
    """Copies the trained weights of each trainer to the other."""
    dqn.set_weights(ppo.get_weights(["ppo_policy"]))
    ppo.set_weights(dqn.get_weights(["dqn_policy"]))


def main(iterations: int = 50) -> float:
    """Trains and returns the mean reward of the weaker policy in 20 greedy episodes: at most 500."""
    ppo = PPOTrainer(env=TwoCarts, config=config("ppo_policy", **PPO_CONFIG))
    dqn = DQNTrainer(env=TwoCarts, config=config("dqn_policy", **DQN_CONFIG))
    with ppo, dqn:
        for iteration in range(1, iterations + 1):
            trained = ppo.train()["policy_reward_mean"]["ppo_policy"], dqn.train()["policy_reward_mean"]["dqn_policy"]
            copy_weights(ppo, dqn)
            if iteration % 5 == 0:
                print(f"iteration {iteration:3}  mean reward: PPO {trained[0] or 0:.0f}, DQN {trained[1] or 0:.0f}")
        return min(ppo.evaluate(num_episodes=20)["policy_reward_mean"].values())


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward of the weaker policy: {reward:.0f}")
    assert reward >= 200
