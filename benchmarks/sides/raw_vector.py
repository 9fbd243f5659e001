"""A native Gymnasium vector env stepped with actions drawn beforehand; it resets its copies by itself."""

import argparse

import numpy as np

from benchmarks.protocol import serve_rates, versions
from benchmarks.sides.native import make_native


def main() -> None:
    """Serves rounds of the bare vector env."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    envs = make_native(args.env, args.num_envs)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = np.stack([envs.action_space.sample() for _ in range(args.fragment)])

    def collect() -> int:
        for row in actions:
            envs.step(row)
        return args.num_envs * args.fragment

    serve_rates(collect, versions=versions("gymnasium", "ale-py", "numpy"))


if __name__ == "__main__":
    main()
