"""Trainers as trials of Ray Tune."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from rollax import Callbacks, CheckpointError, ConfigError, PGTrainer, PPOTrainer, load_policy
from tests.env.refused import raised, refused
from tests.paying import EPISODE, SMALL, paying_env
from tests.python_process import output_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of Ray's modules at import
    from ray.tune.trainable import trainable as module_of_trainable

from rollax.ray_tune import TunedTrainer, checkpoint_in, keep_to_reserved, plain, trainable


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes trials in this process, without Ray; their folders are temporary ones."""
    monkeypatch.setattr(module_of_trainable, "DEFAULT_STORAGE_PATH", str(tmp_path / "trials"))
    made = []

    def make_one(algorithm="PPO", **config):
        made.append(trainable(algorithm)(config={"env": paying_env(), **SMALL, **config}))
        return made[-1]

    yield make_one
    for trial in made:
        trial.stop()


class TestClass:
    def test_the_class_is_named_after_the_algorithm(self):
        assert trainable("ppo").__name__ == trainable(PPOTrainer).__name__ == "PPO"
        assert trainable(PGTrainer).trainer_class is PGTrainer
        assert issubclass(trainable("PG"), TunedTrainer)

    def test_an_unknown_algorithm_is_refused(self):
        refused(ConfigError, trainable, "PPOO", says="PPO")

    @pytest.mark.long
    def test_importing_rollax_does_not_load_tune(self):
        script = "import sys, rollax.cli, rollax.algorithms.ppo; print('ray' in sys.modules)"
        assert output_of("-c", script).strip() == "False"

    @pytest.mark.long
    def test_without_tune_the_error_has_the_command_to_install_it(self):
        script = "import sys; sys.modules['ray.tune'] = None; import rollax.ray_tune"
        done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, check=False)
        assert "pip install 'rollax[ray-tune]'" in done.stderr


OF_ALL_KINDS = {"num_workers": 2, "num_cpus_for_driver": 3, "num_gpus": 0.5, "num_cpus_per_worker": 1.5}
OF_ALL_KINDS |= {"num_gpus_per_worker": 0.25, "custom_resources_per_worker": {"simulator": 2}}


class TestResources:
    @pytest.fixture(autouse=True)
    def _without_a_cluster(self, monkeypatch):
        monkeypatch.setattr("ray.is_initialized", lambda: False)  # another test may have started a small one

    @pytest.mark.parametrize(
        ("config", "bundles"),
        [
            ({}, [{"CPU": 1}]),
            ({"num_workers": 2}, [{"CPU": 1}] * 3),
            ({"num_workers": 1, "evaluation_num_workers": 2}, [{"CPU": 1}] * 4),
            (OF_ALL_KINDS, [{"CPU": 3, "GPU": 0.5}, *[{"CPU": 1.5, "GPU": 0.25, "simulator": 2}] * 2]),
            ({"num_workers": 2, "num_cpus_per_worker": 0}, [{"CPU": 1}]),
            ({"num_cpus_for_driver": 0}, [{"CPU": 0.001}]),
            ({"num_workers": "many", "num_cpus_for_driver": 3}, [{"CPU": 1}]),
        ],
    )
    def test_a_bundle_for_the_learner_and_one_for_each_worker(self, config, bundles):
        request = trainable("PPO").default_resource_request({"env": "CartPole-v1", **config})
        assert request.bundles == bundles
        assert not request.head_bundle_is_empty

    def test_no_resources_for_the_learner(self):
        request = trainable("PPO").default_resource_request({"num_workers": 1, "num_cpus_for_driver": 0})
        assert (request.bundles, request.head_bundle_is_empty) == ([{"CPU": 1}], True)

    @pytest.mark.parametrize(
        ("bundle", "given", "variables", "platform"),
        [
            ({"CPU": 2.5}, {}, {"NPROC": "2"}, "cpu"),
            ({}, {}, {"NPROC": "1"}, "cpu"),
            # 0.9 of the reserved half
            ({"CPU": 1, "GPU": 0.5}, {}, {"NPROC": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450"}, None),
            ({"CPU": 1, "TPU": 4}, {}, {"NPROC": "1"}, None),
            ({"CPU": 1}, {"NPROC": "7", "JAX_PLATFORMS": "cuda"}, {"NPROC": "7", "JAX_PLATFORMS": "cuda"}, None),
        ],
    )
    def test_a_trial_uses_only_its_reserved_resources(self, bundle, given, variables, platform, monkeypatch):
        import jax

        updates = {}
        monkeypatch.setattr(os, "environ", dict(given))
        monkeypatch.setattr(type(jax.config), "update", lambda self, name, value: updates.update({name: value}))
        keep_to_reserved(bundle)
        assert os.environ == variables
        assert updates.get("jax_platforms") == platform


class TestResults:
    def test_plain_values(self):
        given = {"a": None, 1: [np.float32(0.5), np.arange(2)], "b": {"c": (True, "text")}, "d": math.inf}
        text = json.dumps(plain({**given, "e": Path("ok")}))
        assert text == '{"a": NaN, "1": [0.5, [0, 1]], "b": {"c": [true, "text"]}, "d": Infinity, "e": "ok"}'

    def test_each_iteration_has_the_same_keys_with_nan_for_missing_values(self, make):
        # 2 steps per iteration and 4 per episode: the first episode ends in the second iteration.
        trial = make(train_batch_size=2, sgd_minibatch_size=2, evaluation_interval=3, evaluation_num_episodes=1)
        first, second, third, fourth = [trial.train() for _ in range(4)]
        assert math.isnan(first["episode_reward_mean"])
        assert second["episode_reward_mean"] == EPISODE
        assert first.keys() - {"timesteps_since_restore"} == fourth.keys() - {"timesteps_since_restore"}
        # An evaluation is repeated until the next one, so that a search can use it in any iteration.
        rewards = [result["evaluation"]["episode_reward_mean"] for result in (second, third, fourth)]
        np.testing.assert_array_equal(rewards, [np.nan, EPISODE, EPISODE])
        assert first["evaluation"].keys() == fourth["evaluation"].keys()
        counted = ("training_iteration", "timesteps_total", "timesteps_this_iter", "done")
        assert [fourth[name] for name in counted] == [4, 8, 2, False]

    @pytest.mark.long
    def test_without_evaluation_the_value_is_nan(self, make):
        assert math.isnan(make().train()["evaluation"])

    def test_results_have_the_values_of_callbacks(self, make):
        class Ending(Callbacks):
            def on_train_result(self, *, trainer, result):
                result.update(done=trainer.iteration == 2, weight=np.float32(3))

        trial = make(callbacks=Ending)
        results = [trial.train() for _ in range(2)]
        assert [result["done"] for result in results] == [False, True]
        assert type(results[0]["weight"]) is float


class TestCheckpoints:
    @pytest.mark.long
    def test_exploiting_copies_weights_and_optimizer_and_keeps_the_new_hyperparameters(self, make, tmp_path):
        donor = make(lr=1e-3, clip_param=0.1, kl_coeff=0.2, kl_target=1e9)
        for _ in range(2):
            donor.train()
        saved = donor.save(str(tmp_path / "saved"))
        # The third iteration learns at step 64, with 1e-2 - 64/128 of 8e-3
        schedules = {"lr_schedule": [[0, 1e-2], [128, 2e-3]], "entropy_coeff_schedule": [[0, 0.0], [256, 0.4]]}
        copied = make(clip_param=0.3, kl_coeff=0.4, kl_target=1e9, **schedules)
        copied.train()
        copied.restore(saved)
        one, other = (trial.trainer.get_policy() for trial in (donor, copied))
        for name, weights in one.get_weights().items():
            np.testing.assert_array_equal(weights, other.get_weights()[name])
        before, after = one.get_state(), other.get_state()
        assert before["optimizer"].keys() == after["optimizer"].keys()
        for name, array in before["optimizer"].items():
            np.testing.assert_array_equal(array, after["optimizer"][name])
        result = copied.train()
        assert copied.iteration == result["training_iteration"] == 3
        assert result["timesteps_total"] == 96
        learned = result["info"]["learner"]["default_policy"]
        assert learned["cur_lr"] == pytest.approx(6e-3)
        coefficients = other.coefficients()  # of the next iteration, at step 96
        assert coefficients["lr"] == pytest.approx(4e-3)
        assert coefficients["entropy_coeff"] == pytest.approx(0.15)
        assert coefficients["clip_param"] == 0.3
        # An adaptive coefficient is state: it continues from 0.2, halved twice, as no divergence is near the target.
        assert learned["cur_kl_coeff"] == pytest.approx(0.05)

    def test_the_last_evaluation_stays_in_the_results(self, make, tmp_path):
        donor = make(evaluation_interval=1, evaluation_num_episodes=1)
        donor.train()
        copied = make(evaluation_interval=3)
        copied.restore(donor.save(str(tmp_path / "saved")))
        assert copied.train()["evaluation"]["episode_rewards"] == [EPISODE]

    def test_the_newest_checkpoint_in_the_folder_is_used(self, make, tmp_path):
        trial = make()
        for _ in range(2):
            trial.train()
            trial.save(str(tmp_path))
        assert checkpoint_in(tmp_path).name == "checkpoint_000002"
        assert load_policy(checkpoint_in(str(tmp_path))).compute_single_action([0.0]) in (0, 1)

    def test_a_folder_without_a_checkpoint_is_refused(self, make, tmp_path):
        with pytest.raises(CheckpointError, match=r"no checkpoint of a trainer(.|\n)*rollax\.ray_tune\.trainable"):
            make().load_checkpoint(str(tmp_path))

    @pytest.mark.short("", "{")
    @pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"1", b'{"more": 1}', b"\xff", b"NaN", None])
    def test_a_damaged_evaluation_is_refused(self, make, tmp_path, content):
        trial = make(evaluation_interval=1)
        trial.train()
        trial.save(str(tmp_path))
        stored = tmp_path / "evaluation.json"
        stored.unlink()
        if content is None:
            stored.mkdir()
        else:
            stored.write_bytes(content)
        refused(CheckpointError, trial.load_checkpoint, str(tmp_path), says="evaluation.json")

    def test_a_reset_makes_a_new_trainer(self, make):
        closed = []
        trial = make(env_config={"closed": closed.append}, evaluation_interval=1, lr=1e-3)
        trial.train()
        weights = trial.trainer.get_weights()["default_policy"]
        old = trial.trainer
        new = {"env": paying_env(), **SMALL, "evaluation_interval": 2, "evaluation_num_episodes": 1, "lr": 5e-3}
        assert trial.reset(new) is True
        assert closed  # the environments of the old trainer
        assert trial.trainer is not old
        made = trial.trainer.get_weights()["default_policy"]
        assert any((weights[name] != array).any() for name, array in made.items())
        result = trial.train()
        assert (result["training_iteration"], result["timesteps_total"]) == (1, 32)
        assert result["info"]["learner"]["default_policy"]["cur_lr"] == 5e-3
        assert math.isnan(result["evaluation"]["episode_reward_mean"])

    def test_a_failed_reset_closes_everything(self, make):
        closed = []
        trial = make(env_config={"closed": closed.append})
        raised(ConfigError, trial.reset, {"env": paying_env(), "learning_rate": 1.0}, says="learning_rate")
        count = len(closed)
        assert count > 0
        trial.stop()
        assert len(closed) == count

    def test_stopping_closes_the_environments(self, make):
        closed = []
        trial = make(env_config={"closed": closed.append}, num_envs_per_worker=2)
        assert not closed
        trial.stop()
        assert len(set(closed)) == 2
