"""The raw loop over multi-agent cart-poles: copies stepped in turn with actions drawn beforehand."""

import argparse

import numpy as np

from benchmarks.multi_agent_cartpole import ALL, ManyCartPoles
from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of the raw loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-agents", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    envs = [ManyCartPoles(args.num_agents) for _ in range(args.num_envs)]
    waiting = [list(env.reset(seed=index)[0]) for index, env in enumerate(envs)]
    rng = np.random.default_rng(0)
    actions = [rng.integers(2, size=args.num_agents).tolist() for _ in range(args.fragment)]

    def collect() -> int:
        agent_steps = 0
        for row in actions:
            for index, env in enumerate(envs):
                obs, _, terminateds, truncateds, _ = env.step({agent: row[agent] for agent in waiting[index]})
                agent_steps += len(obs)
                if terminateds[ALL]:
                    waiting[index] = list(env.reset()[0])
                else:
                    waiting[index] = [a for a in obs if not (terminateds.get(a) or truncateds.get(a))]
        return agent_steps

    serve_rates(collect, versions=versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
