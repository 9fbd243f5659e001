"""Sampling in several processes: rounds of broadcast and gather with PPO's policy, without learning."""

import argparse

from benchmarks.protocol import serve_rates, versions


def main() -> None:
    """Serves rounds of sampling."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", required=True)
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--num-envs", type=int, required=True, help="of each worker")
    parser.add_argument("--fragment", type=int, required=True)
    args = parser.parse_args()

    from rollax import SyncSamplesOptimizer
    from rollax.algorithms.ppo import PPO, PPOConfig
    from rollax.config import MultiAgentConfig
    from rollax.models.config import ModelConfig
    from rollax.rollout.worker_set import WorkerSet

    config = PPOConfig(
        env=args.env,
        num_workers=args.num_workers,
        num_envs_per_worker=args.num_envs,
        rollout_fragment_length=args.fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        train_batch_size=args.num_workers * args.num_envs * args.fragment,
        sgd_minibatch_size=1,
        multiagent=MultiAgentConfig(policies_to_train=()),
        ray_address="local",
        seed=0,
    )
    workers = WorkerSet(config, PPO)
    optimizer = SyncSamplesOptimizer(workers.local, workers.remote)

    def collect() -> int:
        before = optimizer.env_steps
        optimizer.step()
        optimizer.take_episodes()
        optimizer.timings.take()
        return optimizer.env_steps - before

    serve_rates(collect, versions=versions("rollax", "ray", "jax", "flax", "gymnasium", "numpy"))
    workers.stop()


if __name__ == "__main__":
    main()
