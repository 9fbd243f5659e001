"""The raw loop over PettingZoo's tic-tac-toe: copies played in turn; each move takes any free square."""

import argparse
from typing import Any

import numpy as np
import pettingzoo

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of the raw loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    envs = [pettingzoo.make("aec", "classic/tictactoe-v3") for _ in range(args.num_envs)]
    for env in envs:
        env.reset()
    boards: list[Any] = [env.last()[0] for env in envs]
    draws = np.random.default_rng(0).random(args.fragment).tolist()

    def collect() -> int:
        for draw in draws:
            for index, env in enumerate(envs):
                free = boards[index]["action_mask"].nonzero()[0]
                env.step(int(free[int(draw * len(free))]))
                boards[index], _, terminated, truncated, _ = env.last()
                while terminated or truncated:
                    env.step(None)
                    if not env.agents:
                        env.reset()
                    boards[index], _, terminated, truncated, _ = env.last()
        return args.num_envs * args.fragment

    serve_rates(collect, versions=versions("pettingzoo", "numpy"))


if __name__ == "__main__":
    main()
