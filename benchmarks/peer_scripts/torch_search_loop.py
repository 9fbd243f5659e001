"""The design of early RLlib's ARS as a bare loop: one environment, a filter and a PyTorch forward pass for each step.

Same as in the design: a shared table of noise, weights set from one flat vector, a filter for every observation,
actions from a distribution. Left out: Ray, and all communication between processes.
"""

import argparse
import itertools
import json

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.protocol import serve_rates, versions


class RunningStat:
    """Welford's update of mean and deviation by one row, and the standardized row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.n, self.mean, self.squares = 0, np.zeros(shape), np.zeros(shape)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x, np.float64)
        self.n += 1
        apart = x - self.mean
        self.mean = self.mean + apart / self.n
        self.squares = self.squares + apart * (x - self.mean)
        std = np.sqrt(self.squares / max(self.n - 1, 1))
        return np.clip((x - self.mean) / (std + 1e-8), -10.0, 10.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--directions", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--hiddens", type=json.loads, default=[])
    args = parser.parse_args()

    torch.set_num_threads(1)  # several threads do not help for a single row
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(2_000_000).astype(np.float32)
    env = gym.make(args.env)
    discrete = isinstance(env.action_space, spaces.Discrete)
    outputs = int(env.action_space.n) if discrete else env.action_space.shape[0]
    widths = [env.observation_space.shape[0], *args.hiddens, outputs]
    layers: list[torch.nn.Module] = []
    for inputs, width in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, width), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers[:-1])
    theta = np.zeros(sum(p.numel() for p in model.parameters()), np.float32)
    observed = RunningStat(env.observation_space.shape)

    def set_weights(vector: np.ndarray) -> None:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(vector), model.parameters())

    def act(obs: np.ndarray) -> object:
        with torch.no_grad():
            logits = model(torch.from_numpy(observed(obs)[None].astype(np.float32)))
            if discrete:
                return int(torch.distributions.Categorical(logits=logits).probs.argmax(dim=1).numpy()[0])
            return np.clip(logits.numpy()[0], env.action_space.low, env.action_space.high)

    def rollout(vector: np.ndarray) -> tuple[float, int]:
        set_weights(vector)
        obs, _ = env.reset()
        total, steps, over = 0.0, 0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, steps, over = total + reward, steps + 1, terminated or truncated
        return total, steps

    def iteration() -> int:
        nonlocal theta
        starts = rng.integers(0, len(noise) - len(theta), args.directions)
        directions = [noise[start : start + len(theta)] for start in starts]
        played = [[rollout(theta + sign * 0.05 * epsilon) for sign in (1, -1)] for epsilon in directions]
        returns = np.array([[total for total, _ in both] for both in played])
        weights = (returns[:, 0] - returns[:, 1]) / (returns.std() + 1e-8) / args.directions
        theta = theta + np.float32(0.02) * (weights.astype(np.float32) @ np.stack(directions))
        return sum(steps for both in played for _, steps in both)

    for _ in range(args.warm_up):
        iteration()
    serve_rates(iteration, threads=1, versions=versions("torch", "gymnasium", "mujoco", "numpy"))


if __name__ == "__main__":
    main()
