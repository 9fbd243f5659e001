"""Stable-Baselines3's DQN on synthetic Atari transitions: updates, replay sampling included."""

import argparse

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN

from benchmarks.frames import ACTIONS, EPISODE, SIDE, STACK, stacks
from benchmarks.protocol import serve_rates, versions


class Blank(gym.Env):
    """Defines the spaces and a first observation; it is never stepped."""

    observation_space = gym.spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
    action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        return np.zeros((STACK, SIDE, SIDE), np.uint8), {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transitions", type=int, required=True)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    model = DQN.make_policy(
        "CnnPolicy",
        Blank(),
        buffer_size=args.transitions,
        batch_size=args.batch,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        device="auto",
        seed=0,
    )
    model._setup_learn(total_timesteps=10**9)
    obs = stacks(EPISODE + 1, channels_first=True)
    for step in range(args.transitions):
        t = step % EPISODE
        done = np.array([t == EPISODE - 1])
        action, reward = np.array([[t % ACTIONS]]), np.ones(1, np.float32)
        model.replay_buffer.add(obs[None, t], obs[None, t + 1], action, reward, done, [{}])

    def update() -> int:
        model.train(gradient_steps=1, batch_size=args.batch)
        return 1

    serve_rates(
        update, threads=torch.get_num_threads(), versions=versions("stable-baselines3", "torch", "gymnasium", "numpy")
    )


if __name__ == "__main__":
    main()
