"""Population-based training with Ray Tune: weak trials copy the policy of a strong one and perturb its `lr`."""

from __future__ import annotations

import tempfile

import ray
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from rollax import PPOTrainer
from rollax.ray_tune import checkpoint_in, trainable

CONFIG = {
    "env": "CartPole-v1",
    "num_envs_per_worker": 8,
    "train_batch_size": 1024,
    "gamma": 0.98,
    "lambda": 0.8,
    # The first learning rates are far too small.
    "lr": tune.grid_search([1e-6, 1e-5, 1e-3]),
    "num_cpus_for_driver": 0.5,
}


def main(iterations: int = 40) -> float:
    """Trains a population and returns the mean reward of its best policy in 20 greedy episodes."""
    ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=5,
        quantile_fraction=0.34,
        hyperparam_mutations={"lr": tune.loguniform(1e-4, 3e-3)},
    )
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            trainable("PPO"),
            param_space=CONFIG,
            tune_config=tune.TuneConfig(
                scheduler=scheduler, metric="episode_reward_mean", mode="max", reuse_actors=True
            ),
            run_config=tune.RunConfig(
                storage_path=folder,
                stop={"training_iteration": iterations},
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
                verbose=0,
            ),
        )
        results = tuner.fit()
        for result in results:
            assert result.config is not None
            assert result.metrics is not None
            print(f"final lr {result.config['lr']:.1e}, mean reward {result.metrics['episode_reward_mean']:.0f}")
        checkpoint = results.get_best_result().checkpoint
        assert checkpoint is not None
        with checkpoint.as_directory() as saved, PPOTrainer.from_checkpoint(checkpoint_in(saved)) as trainer:
            return trainer.evaluate(num_episodes=20)["episode_reward_mean"]


if __name__ == "__main__":
    reward = main()
    print(f"greedy reward of the best policy: {reward:.0f}")
    assert reward >= 300
