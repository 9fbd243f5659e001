"""Iterations of rollax's ARS in one process, after some that make the episodes long."""

import argparse
import json

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of whole iterations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--directions", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True, help="iterations before the first round")
    parser.add_argument("--hiddens", type=json.loads, default=[], help="JSON: widths of hidden layers")
    args = parser.parse_args()

    from rollax import ARSTrainer

    config = {
        "num_directions": args.directions,
        "num_envs_per_worker": args.num_envs,
        "model": {"fcnet_hiddens": args.hiddens},
        "seed": 0,
    }
    trainer = ARSTrainer(env=args.env, config=config)
    for _ in range(args.warm_up):
        trainer.train()
    serve_rates(
        lambda: trainer.train()["timesteps_this_iter"],
        versions=versions("rollax", "jax", "gymnasium", "mujoco", "numpy"),
    )


if __name__ == "__main__":
    main()
