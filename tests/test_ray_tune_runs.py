"""Trials in processes of Ray Tune. Each process loads JAX, so there are few runs."""

import logging
import os
import warnings

import numpy as np
import pytest

from rollax import Callbacks, PPOTrainer, register_env
from tests.paying import EPISODE, SMALL, paying_env

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of Ray's modules at import
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.utils import flatten_dict

from rollax.ray_tune import checkpoint_in, trainable

SHARE = {"num_cpus_for_driver": 0.25}


@pytest.fixture(scope="module")
def small_cluster():
    """Ray, also if another test has started it: all trials fit into one CPU."""
    started = not ray.is_initialized()
    if started:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                num_cpus=2,
                object_store_memory=100 * 2**20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    yield
    if started:
        ray.shutdown()


def fit(config, iterations, folder, *, checkpoint=None, callbacks=None, **settings):
    """Runs trials of PPO until an iteration."""
    run_config = tune.RunConfig(
        name="run",
        storage_path=str(folder),
        stop={"training_iteration": iterations},
        checkpoint_config=checkpoint,
        callbacks=callbacks,
        verbose=0,
    )
    space, search = {**SMALL, **SHARE, **config}, tune.TuneConfig(**settings)
    tuner = tune.Tuner(trainable("PPO"), param_space=space, run_config=run_config, tune_config=search)
    return quietly(tuner.fit)


def quietly(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune's own
        return function()


@pytest.fixture(scope="module")
def grid(small_cluster, tmp_path_factory):
    """Two learning rates, with an environment and a callback that are defined only in this process."""

    class Noting(Callbacks):
        def on_episode_end(self, *, worker, base_env, episode):
            episode.custom_metrics["length"] = episode.length

        def on_train_result(self, *, trainer, result):
            result["nproc"] = os.environ["NPROC"]

    register_env("PayingByName", paying_env())
    config = {"env": "PayingByName", "env_config": {"pay": 0.5}, "callbacks": Noting}
    config |= {"lr": tune.grid_search([1e-3, 2e-3]), "evaluation_interval": 2, "evaluation_num_episodes": 1}
    at_the_end = tune.CheckpointConfig(checkpoint_at_end=True)
    return fit(config, 3, tmp_path_factory.mktemp("grid"), checkpoint=at_the_end)


@pytest.mark.long
def test_a_grid_has_its_results(grid):
    assert not grid.errors
    table = grid.get_dataframe().sort_values("config/lr")
    assert table["config/lr"].tolist() == table["info/learner/default_policy/cur_lr"].tolist() == [1e-3, 2e-3]
    assert table["training_iteration"].tolist() == [3, 3]
    assert table["timesteps_total"].tolist() == [96, 96]
    assert table["episode_reward_mean"].tolist() == [2.0, 2.0]  # 4 steps of 0.5
    assert table["custom_metrics/length_mean"].tolist() == [4.0, 4.0]
    assert table["nproc"].tolist() == ["1", "1"]  # the reserved CPUs, but at least one
    # Files of Tune have the columns of the first iteration, which has no evaluation.
    history = grid[0].metrics_dataframe["evaluation/episode_reward_mean"]
    np.testing.assert_array_equal(history, [np.nan, 2.0, 2.0])


@pytest.mark.long
def test_a_trial_that_can_never_start_fails_alone(small_cluster, tmp_path):
    config = {"env": paying_env(), "num_cpus_for_driver": tune.grid_search([10**6, 0.25])}
    (error,) = (results := fit(config, 1, tmp_path)).errors
    assert "reserves more resources than the cluster has" in str(error)
    assert "CPU: 1e+06\n  expected: at most CPU: 2\n" in str(error)
    assert [result.metrics["training_iteration"] for result in results if not result.error] == [1]


@pytest.mark.long
def test_the_best_checkpoint_is_a_policy(grid):
    with grid.get_best_result("info/learner/default_policy/cur_lr", "max").checkpoint.as_directory() as folder:
        assert checkpoint_in(folder).name == "checkpoint_000003"
        with PPOTrainer.from_checkpoint(checkpoint_in(folder), env=paying_env(), callbacks=None) as trainer:
            assert (trainer.config.lr, trainer.iteration) == (2e-3, 3)
            assert trainer.train()["timesteps_total"] == 128


@pytest.mark.long
def test_an_error_is_reported_and_a_restored_search_continues(small_cluster, tmp_path):
    fixed = tmp_path / "fixed"
    # 32 steps per iteration: it fails in the third one.
    config = {"env": paying_env(), "env_config": {"fails_at": 70, "fixed": str(fixed)}}
    results = fit(config, 4, tmp_path, checkpoint=tune.CheckpointConfig(checkpoint_frequency=1))
    assert results[0].metrics["training_iteration"] == 2
    assert "the simulator is gone" in str(results[0].error)
    fixed.touch()
    restored = quietly(lambda: tune.Tuner.restore(results.experiment_path, trainable("PPO"), resume_errored=True).fit())
    history = restored[0].metrics_dataframe
    assert history["training_iteration"].tolist() == [1, 2, 3, 4]
    assert history["timesteps_total"].tolist() == [32, 64, 96, 128]
    assert history["iterations_since_restore"].tolist() == [1, 2, 1, 2]


class Reported(tune.Callback):
    """All results that trials have reported.

    The files of Tune may lack some: when a paused trial continues, Ray overwrites its `result.json` with the copy in
    the storage path, which may be older than the pause.
    """

    def __init__(self) -> None:
        self.results: dict[float, list[dict]] = {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results.setdefault(trial.evaluated_params["env_config/pay"], []).append(result)

    def of(self, pay, key):
        return [flatten_dict(result)[key] for result in self.results[pay]]


@pytest.mark.long
def test_population_based_training_keeps_perturbed_hyperparameters(small_cluster, tmp_path):
    # The second trial has higher rewards, so the first one copies its weights, counters and config, with another lr.
    config = {"env": paying_env(), "env_config": {"pay": tune.grid_search([0.0, 1.0])}, "lr": 1e-3}
    population = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [1e-3]},
        custom_explore_fn=lambda config: {**config, "lr": 3e-3},
        quantile_fraction=0.5,
        synch=True,
    )
    reported = Reported()
    tuned = {"scheduler": population, "metric": "episode_reward_mean", "mode": "max", "reuse_actors": True}
    assert not fit(config, 4, tmp_path, callbacks=[reported], **tuned).errors
    learned_with = "info/learner/default_policy/cur_lr"
    assert reported.of(1.0, learned_with) == [1e-3] * 4
    assert reported.of(0.0, learned_with) == [1e-3] * 2 + [3e-3] * 2
    assert reported.of(0.0, "timesteps_total") == [32, 64, 96, 128]
    assert reported.of(0.0, "episode_reward_mean")[1:3] == [0.0, 4.0]


@pytest.mark.long
def test_workers_run_in_the_trials_resources_and_a_wrong_config_fails_alone(small_cluster, tmp_path):
    def here():
        """The sum of 1 if in the bundles of a trial, and 2 if in the same Ray."""
        context = ray.get_runtime_context()
        in_group = context.get_placement_group_id() is not None
        return float(in_group) + 2.0 * (context.gcs_address == address)

    address = ray.get_runtime_context().gcs_address
    config = {"env": paying_env(), "env_config": {"pay": here}, "num_workers": 1, "num_cpus_per_worker": 0.25}
    config["model"] = tune.grid_search([{"fcnet_hiddens": [4]}, {"fcnet_hidden": [4]}])
    result, wrong = fit(config, 1, tmp_path)
    assert not result.error
    assert result.metrics["info"]["workers"]["healthy"] == 1
    assert result.metrics["episode_reward_mean"] == EPISODE * 3.0
    assert "Unknown config key 'fcnet_hidden'" in str(wrong.error)
    assert "did you mean 'fcnet_hiddens'?" in str(wrong.error)
