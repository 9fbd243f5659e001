"""rollax's `RolloutWorker.sample` alone in one process, PPO's policy with a 64x64 tanh actor and critic."""

import argparse
import json

import gymnasium as gym

from benchmarks.protocol import serve_rates, versions
from benchmarks.sides.native import make_native


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True)
    parser.add_argument("--native", action="store_true", help="one native vector env instead of copies")
    parser.add_argument("--stepwise", action="store_true", help="an environment in JAX, stepped from the host")
    parser.add_argument("--model", type=json.loads, default={}, help="JSON: what differs from the 64x64 tanh model")
    args = parser.parse_args()

    from rollax import RolloutWorker
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.models.config import ModelConfig
    from rollax.rollout.row_sampler import RowSampler

    def create(_context: object) -> gym.Env | gym.vector.VectorEnv:
        return make_native(args.env, args.num_envs) if args.native else gym.make(args.env)

    model = {"fcnet_hiddens": (64, 64), "fcnet_activation": "tanh", "vf_share_layers": args.env.startswith("ALE/")}
    config = PPOConfig(
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(**{**model, **args.model}),
        sampler=RowSampler if args.stepwise else None,
        seed=0,
    )
    worker = RolloutWorker(args.env if args.env.startswith("jax:") else create, PPO, config=config)

    def collect() -> int:
        steps = worker.sample().env_steps
        # A trainer reads the metrics once per iteration; unread metrics would accumulate.
        worker.get_metrics()
        return steps

    serve_rates(collect, versions=versions("rollax", "jax", "flax", "gymnasium", "ale-py", "numpy"))


if __name__ == "__main__":
    main()
