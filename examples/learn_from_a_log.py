"""Learning from a log: episodes of another policy are read from a file.

The log contains episodes of CartPole, played by a simple rule with random actions, from a few up to all. Two workers
read different episodes and report the logged actions with `log_action`. DQN learns from these alone and is evaluated on
the real CartPole.
"""

from __future__ import annotations

import csv
import tempfile
from itertools import groupby
from pathlib import Path

import gymnasium as gym
import numpy as np

from rollax import DQNTrainer, EnvContext, ExternalEnv

EPISODES = 400
COLUMNS = ("episode", "position", "velocity", "angle", "angular_velocity", "action", "reward", "terminated")


def write_log(path: Path) -> float:
    """Plays with the rule and writes a line for each step; returns the mean reward of an episode.

    The last line of an episode has the observation after its last step, without an action.
    """
    random, env, total = np.random.default_rng(0), gym.make("CartPole-v1"), 0.0
    with path.open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(COLUMNS)
        for episode in range(EPISODES):
            slips = random.uniform(0.3, 1.0)
            obs, over, terminated = env.reset(seed=episode)[0], False, False
            while not over:
                action = int(obs[2] + obs[3] > 0) if random.random() > slips else int(random.integers(2))
                seen = obs.tolist()
                obs, reward, terminated, truncated, _ = env.step(action)
                log.writerow([episode, *seen, action, reward, ""])
                total, over = total + float(reward), terminated or truncated
            log.writerow([episode, *obs.tolist(), "", "", int(terminated)])
    return total / EPISODES


class Log(ExternalEnv):
    """Reads its share of the episodes repeatedly: of two workers the first reads episodes 0, 2, 4 and so on."""

    def __init__(self, context: EnvContext) -> None:
        pole = gym.make("CartPole-v1")
        super().__init__(pole.observation_space, pole.action_space)
        with Path(context["path"]).open(newline="") as file:
            episodes = [list(lines) for _, lines in groupby(csv.DictReader(file), lambda line: line["episode"])]
        self.episodes = episodes[max(context.worker_index - 1, 0) :: max(context.num_workers, 1)]

    def run(self) -> None:
        while True:
            for *steps, last in self.episodes:
                episode = self.start_episode()
                for line in steps:
                    self.log_action(episode, observed(line), int(line["action"]))
                    self.log_returns(episode, float(line["reward"]))
                self.end_episode(episode, observed(last), truncated=not int(last["terminated"]))


def observed(line: dict[str, str]) -> np.ndarray:
    """Returns the observation in a line of the log."""
    return np.array([line[name] for name in COLUMNS[1:5]], np.float32)


def main(iterations: int = 22) -> float:
    """Trains and returns the mean reward of 20 greedy episodes of the real CartPole: at most 500."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cartpole.csv"
        print(f"mean reward of the episodes in the log: {write_log(path):.0f}")
        config = {
            "env_config": {"path": str(path)},
            "evaluation_config": {"env": "CartPole-v1", "env_config": {}},
            "num_workers": 2,
            "num_cpus_per_worker": 0.5,
            "rollout_fragment_length": 128,
            "timesteps_per_iteration": 2000,
            "training_intensity": 0.5,
            "train_batch_size": 128,
            "n_step": 3,
            "gamma": 0.98,
            "target_network_update_freq": 200,
            "seed": 0,
        }
        with DQNTrainer(env=Log, config=config) as trainer:
            for iteration in range(1, iterations + 1):
                result = trainer.train()
                if iteration % 5 == 0:
                    reward = trainer.evaluate(num_episodes=5)["episode_reward_mean"]
                    print(f"{result['timesteps_total']:7,} steps read  greedy reward {reward:.0f}")
            return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward on the real CartPole: {reward:.0f}")
    assert reward >= 400
