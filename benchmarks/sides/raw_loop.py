"""The raw loop: copies from `gym.make`, stepped in turn with actions drawn beforehand, and reset when they end."""

import argparse

import gymnasium as gym

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of the raw loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    envs = [gym.make(args.env) for _ in range(args.num_envs)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
        env.action_space.seed(index)
    actions = [[env.action_space.sample() for env in envs] for _ in range(args.fragment)]

    def collect() -> int:
        for row in actions:
            for env, action in zip(envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return args.num_envs * args.fragment

    serve_rates(collect, versions=versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
