"""Saving and restoring a trainer: with new hyperparameters, of other runs, and damaged; never with code."""

import errno
import json
import os
import shutil
from pathlib import Path

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rollax import SAC, Callbacks, Outputs, PGTrainer, PPOTrainer, Trainer, load_policy
from rollax.algorithms import checkpoint
from rollax.algorithms.checkpoint_config import refuse_ignored_initial_values_in_specs
from rollax.core.storage import from_json_bytes, to_json_bytes
from rollax.errors import CheckpointError, ConfigError, NonFiniteError, PolicyError
from tests.algorithms.checkpoints import CONFIG, PPO, TWO, to_plain
from tests.algorithms.envs import TwoAgents


class TestRestoring:
    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, tmp_path_factory):
        with PPOTrainer("CartPole-v1", PPO) as trainer:
            for _ in range(2):
                trainer.train()
            return trainer.save(tmp_path_factory.mktemp("saved"))

    @pytest.fixture
    def path(self, saved, tmp_path):
        return Path(shutil.copytree(saved, tmp_path / saved.name))

    @pytest.mark.long
    def test_after_an_error_of_a_callback_the_state_is_all_new(self, path):
        class Fails(Callbacks):
            def on_restore(self, *, trainer, state):
                raise RuntimeError("a bug")

        with PPOTrainer("CartPole-v1", {**PPO, "callbacks": Fails}) as trainer:
            with pytest.raises(CheckpointError) as caught:
                trainer.restore(path)
            assert isinstance(caught.value.__cause__, RuntimeError)
            with Trainer.from_checkpoint(path) as restored:
                assert trainer.iteration == restored.iteration == 2
                assert to_plain(trainer.get_weights()) == to_plain(restored.get_weights())

    @pytest.mark.long
    def test_each_class_of_callbacks_keeps_its_own_state(self, tmp_path):
        class First(Callbacks):
            seen, restored = 1, None

            def on_save(self, *, trainer, state):
                assert not state
                state["seen"] = self.seen

            def on_restore(self, *, trainer, state):
                self.restored = dict(state)

        class Second(First):
            seen = 2

        class Third(First):
            pass

        with PPOTrainer("CartPole-v1", {**PPO, "callbacks": [First, Second]}) as trainer:
            trainer.save(tmp_path)
        for given, expected in (
            ([Second, Third, First], [{"seen": 2}, {}, {"seen": 1}]),
            (Second, [{"seen": 2}]),
            (Third, [{}]),
        ):
            with PPOTrainer("CartPole-v1", {**PPO, "callbacks": given}) as trainer:
                trainer.restore(tmp_path)
                callbacks = trainer.worker.callbacks
                instances = callbacks.instances if isinstance(given, list) else [callbacks]
                assert [one.restored for one in instances] == expected
                # A state of an earlier version is not by class.
                trainer.set_state({**trainer.get_state(), "callbacks": {"seen": 3}})
                assert all(one.restored == {"seen": 3} for one in instances)

    def test_keeps_the_new_hyperparameters(self, path):
        new = {
            **PPO,
            "num_envs_per_worker": 3,
            "train_batch_size": 30,
            "sgd_minibatch_size": 30,
            "grad_clip": None,
            "lr_schedule": None,
            "lr": 0.125,
            "gamma": 0.5,
            "kl_target": 1e-9,
        }
        with PPOTrainer("CartPole-v1", new) as trainer:
            trainer.restore(path)
            result = trainer.train()
            assert trainer.config.gamma == 0.5
        assert result["training_iteration"] == 3
        assert result["timesteps_total"] == 2 * 64 + 30
        assert result["info"]["learner"]["default_policy"]["cur_lr"] == 0.125

    def test_restores_counters_and_the_window_of_episodes(self, path):
        with Trainer.from_checkpoint(path) as trainer:
            assert isinstance(trainer, PPOTrainer)
            assert (trainer.iteration, trainer.optimizer.env_steps) == (2, 128)
            result = trainer.train()
            state = trainer.get_state()
        assert result["episode_len_mean"] is not None
        assert len(state["episodes"]) > result["episodes_this_iter"]
        assert result["time_total_s"] > result["time_this_iter_s"]

    def test_from_checkpoint_for_evaluation_with_a_class_of_ones_own(self, path):
        class Own(PPOTrainer):
            def __init__(self, env=None, config=None):
                super().__init__(env, config)

            @property
            def learns(self):
                return "well"

        with Own.from_checkpoint(path, learn=False) as trainer:
            assert len(trainer.evaluate(1)["episode_rewards"]) == 1
            with pytest.raises(ConfigError, match="learn=False"):
                trainer.train()

    def test_from_checkpoint_for_evaluation_refuses_changes_of_learning(self, path):
        message = r"{} has no effect here(.|\n)*learn=False\), config key '{}'(.|\n)*fix: +leave it out, or open"
        changed = {"lr": 0.5, "num_workers": 2, "train_batch_size": 4000, "evaluation_interval": 1, "lambda": 0.5}
        for key, value in changed.items():
            with pytest.raises(ConfigError, match=message.format(*[f"{key}_?"] * 2)):
                PPOTrainer.from_checkpoint(path, learn=False, **{key: value})
        with pytest.raises(
            ConfigError, match=r"explore has no effect here(.|\n)*got: +False\n(.|\n)*evaluation_config"
        ):
            PPOTrainer.from_checkpoint(path, learn=False, explore=False)
        changes = {"evaluation_num_episodes": 2, "explore": True, "num_envs_per_worker": 2, "callbacks": None}
        with PPOTrainer.from_checkpoint(path, learn=False, **changes, num_workers=0) as trainer:
            assert len(trainer.evaluate()["episode_rewards"]) == 2

    def test_a_change_has_an_effect_or_is_refused(self, path):
        with pytest.raises(ConfigError, match=r"lr has no effect: lr_schedule is(.|\n)*lr_schedule=None"):
            Trainer.from_checkpoint(path, lr=1e-5)
        with pytest.raises(
            ConfigError, match=r"kl_coeff has no effect: it is an initial value(.|\n)*0.2, the value of the saved run"
        ):
            Trainer.from_checkpoint(path, kl_coeff=0.5)

    def test_a_change_of_a_spec_has_an_effect_or_is_refused(self, path):
        def multiagent(**config):
            return {"policies": {"default_policy": (None, None, None, config)}}

        with pytest.raises(ConfigError, match=r"kl_coeff has no effect: it is an initial value(.|\n)*default_policy"):
            Trainer.from_checkpoint(path, multiagent=multiagent(kl_coeff=0.5))
        with Trainer.from_checkpoint(path, multiagent=multiagent(kl_target=0.5)) as trainer:
            assert trainer.get_policy().config.kl_target == 0.5

    def test_an_initial_value_may_be_left_out_of_a_spec(self):
        policy = SAC.make_policy(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), {"model": {"fcnet_hiddens": [4]}})
        saved = {"class": "rollax.algorithms.sac:SAC", "config": policy.config.changed(initial_alpha=0.5).to_json()}
        refuse_ignored_initial_values_in_specs({"a": policy}, {"a": saved}, "here")
        policy.config = policy.config.changed(initial_alpha=0.25)
        with pytest.raises(ConfigError, match=r"initial_alpha has no effect(.|\n)*'a' of here"):
            refuse_ignored_initial_values_in_specs({"a": policy}, {"a": saved}, "here")

    @pytest.mark.short(every=3)
    @pytest.mark.parametrize("file", ["manifest.json", "about.json", "state.json", "arrays.safetensors"])
    @pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
    def test_damaged_files_are_refused(self, path, file, damage):
        target = path / file
        content = target.read_bytes()
        if damage == "gone":
            target.unlink()
        elif damage == "cut":
            target.write_bytes(content[: len(content) // 2])
        else:
            middle = len(content) // 2
            target.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with PPOTrainer("CartPole-v1", PPO) as trainer:
            before = trainer.worker.get_weights()["default_policy"]
            with pytest.raises(CheckpointError) as error:
                trainer.restore(path)
            assert path.name in str(error.value)
            assert "expected:" in str(error.value) or "got:" in str(error.value)
            assert trainer.iteration == 0
            for name, value in trainer.worker.get_weights()["default_policy"].items():
                np.testing.assert_array_equal(value, before[name])

    def test_missing_checkpoint_is_refused(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"(.|\n)*checkpoint_000007"):
            Trainer.from_checkpoint(tmp_path / "checkpoint_000007")

    @pytest.mark.parametrize(("version", "message"), [(2, "older format"), (4, "newer format")])
    def test_other_formats_are_refused(self, path, version, message):
        manifest = from_json_bytes((path / "manifest.json").read_bytes())
        (path / "manifest.json").write_bytes(to_json_bytes({**manifest, "format_version": version}))
        with pytest.raises(CheckpointError, match=rf"{message}(.|\n)*got: .*format {version}(.|\n)*format 3"):
            Trainer.from_checkpoint(path)

    def test_an_older_format_names_the_version_that_saved_it(self, path, monkeypatch):
        manifest, saved_by = from_json_bytes((path / "manifest.json").read_bytes()), checkpoint.__version__
        (path / "manifest.json").write_bytes(to_json_bytes({**manifest, "format_version": 2}))
        with pytest.raises(CheckpointError, match=rf"saved by an earlier state of rollax {saved_by}\n"):
            load_policy(path)
        monkeypatch.setattr(checkpoint, "__version__", "9.0")
        message = rf"saved by rollax {saved_by}\n.*of rollax 9.0\n(.|\n)*with the rollax that saved it"
        with pytest.raises(CheckpointError, match=message):
            Trainer.from_checkpoint(path)

    def refused(self, trainer, path, message, error=CheckpointError):
        """Restoring fails, and does not change the trainer."""
        with trainer:
            trainer.train()
            state = to_plain(trainer.get_state())
            with pytest.raises(error, match=message):
                trainer.restore(path)
            assert to_plain(trainer.get_state()) == state
            assert trainer.train()["training_iteration"] == 2

    @pytest.mark.long
    def test_other_spaces_are_refused(self, path):
        self.refused(
            PPOTrainer("Acrobot-v1", PPO),
            path,
            r"observation_space of policy 'default_policy'(.|\n)*\(4,\)(.|\n)*\(6,\)",
        )
        self.refused(
            PPOTrainer(
                lambda context: gym.wrappers.TransformAction(
                    gym.make("CartPole-v1"), lambda a: a % 2, gym.spaces.Discrete(3)
                ),
                PPO,
            ),
            path,
            r"action_space of policy 'default_policy'(.|\n)*Discrete\(2\)(.|\n)*Discrete\(3\)(.|\n)*fix:",
        )

    @pytest.mark.long
    def test_actions_in_another_order_are_refused(self, tmp_path):
        def env(*keys):
            parts = {key: gym.spaces.Discrete(2) for key in keys}
            return lambda context: gym.wrappers.TransformAction(
                gym.make("CartPole-v1"), lambda action: action["left"], gym.spaces.Dict(**parts)
            )

        path = PPOTrainer(env("left", "right"), PPO).save(tmp_path)
        PPOTrainer(env("left", "right"), PPO).restore(path)
        self.refused(PPOTrainer(env("right", "left"), PPO), path, "different action_space of policy")

    def test_a_checkpoint_is_read_once(self, path, monkeypatch):
        reads = []
        read = checkpoint.read
        monkeypatch.setattr(checkpoint, "read", lambda path: reads.append(path) or read(path))
        Trainer.from_checkpoint(path).stop()
        assert reads == [path]

    @pytest.mark.long
    def test_other_policies_are_refused(self, path):
        trainer = PPOTrainer(TwoAgents, {**PPO, "multiagent": TWO, "evaluation_interval": None})
        self.refused(trainer, path, r"set of policies(.|\n)*\['default_policy'\](.|\n)*\['left', 'right'\]")

    def test_another_algorithm_is_refused(self, path):
        trainer = PGTrainer("CartPole-v1", {**CONFIG, "observation_filter": "MeanStdFilter"})
        self.refused(trainer, path, r"different algorithm(.|\n)*PPO(.|\n)*PG")
        with pytest.raises(CheckpointError, match=r"different algorithm(.|\n)*fix: +use Trainer.from_checkpoint"):
            PGTrainer.from_checkpoint(path)

    def test_changes_that_do_not_fit_are_named(self, path):
        """`from_checkpoint` is no fix for its own error."""
        fix = r"fix: +open it with the environment and config of the saved run; changed here: observation_filter$"
        with pytest.raises(CheckpointError, match=rf"different observation_filter(.|\n)*{fix}"):
            PPOTrainer.from_checkpoint(path, observation_filter="NoFilter")

    @pytest.mark.long
    def test_another_filter_or_model_is_refused(self, path):
        self.refused(
            PPOTrainer("CartPole-v1", {**PPO, "observation_filter": "NoFilter"}),
            path,
            r"observation_filter(.|\n)*MeanStd",
        )
        model = {"model": {"fcnet_hiddens": (9,)}}
        self.refused(
            PPOTrainer("CartPole-v1", {**PPO, **model}),
            path,
            "An array of the weights has the wrong shape",
            PolicyError,
        )


class TestSaving:
    def test_full_disk_raises_a_named_error(self, tmp_path, monkeypatch):
        real_write = os.write
        room = 5_000

        def write(descriptor, data):
            nonlocal room
            room -= len(data)
            if room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real_write(descriptor, data)

        with PPOTrainer("CartPole-v1", PPO) as trainer:
            trainer.train()
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write)
                with pytest.raises(
                    CheckpointError, match=r"could not be saved(.|\n)*checkpoint_000001(.|\n)*No space(.|\n)*free some"
                ):
                    trainer.save(tmp_path, exact=True)
            assert list(tmp_path.iterdir()) == []
            trainer.train()
            assert Trainer.from_checkpoint(trainer.save(tmp_path)).iteration == 2

    def test_no_code_and_nothing_pickled(self, tmp_path):
        with PPOTrainer("CartPole-v1", PPO) as trainer:
            path = trainer.save(tmp_path)
        assert sorted(file.name for file in path.iterdir()) == [
            *("about.json", "arrays.safetensors", "manifest.json", "state.json")
        ]
        about = json.loads((path / "about.json").read_text())
        assert about["algorithm"] == "PPO"
        assert about["config"]["env"] == "CartPole-v1"
        assert about["policies"]["default_policy"]["observation_space"]["shape"] == [4]


class OneLayer(nnx.Module):
    def __init__(self, observation_space, num_outputs, *, param_dtype, rngs):
        self.layer = nnx.Linear(4, num_outputs, param_dtype=getattr(jnp, param_dtype), rngs=rngs)

    def __call__(self, obs):
        return Outputs(self.layer(obs))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, dtype):
    model = {"custom_model": OneLayer, "custom_model_config": {"param_dtype": dtype}}
    with PGTrainer("CartPole-v1", {**CONFIG, "model": model}) as trainer:
        weights = trainer.get_weights()
        weights["default_policy"]["layer.bias"][1] = np.nan
        trainer.set_weights(weights)
        with pytest.raises(NonFiniteError, match=r"layer\.bias"):
            trainer.save(tmp_path)
        assert not list(tmp_path.iterdir())
