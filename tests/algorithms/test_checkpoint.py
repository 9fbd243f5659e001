"""Saving and restoring a trainer: with new hyperparameters, and of other runs; never with code."""

import json
import shutil
from functools import partial
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
from tests.env.refused import raised, refused
from tests.marks import long_except


def three_actions(context):
    return gym.wrappers.TransformAction(gym.make("CartPole-v1"), lambda action: action % 2, gym.spaces.Discrete(3))


def refuses(trainer, path, says, error=CheckpointError):
    """Restoring fails, and does not change the trainer."""
    with trainer:
        trainer.train()
        state = to_plain(trainer.get_state())
        refused(error, trainer.restore, path, says=says)
        assert to_plain(trainer.get_state()) == state
        assert trainer.train()["training_iteration"] == 2


def other(says, env="CartPole-v1", trainer_class=PPOTrainer, error=CheckpointError, **changes):
    return lambda: trainer_class(env, {**(PPO if trainer_class is PPOTrainer else CONFIG), **changes}), says, error


OTHERS = {
    "observations": other("observation_space of policy 'default_policy'...(4,)...(6,)", "Acrobot-v1"),
    "actions": other("action_space of policy 'default_policy'...Discrete(2)...Discrete(3)...fix:", three_actions),
    "policies": other(
        "set of policies...['default_policy']...['left', 'right']", TwoAgents, multiagent=TWO, evaluation_interval=None
    ),
    "algorithm": other("different algorithm...PPO...PG", trainer_class=PGTrainer, observation_filter="MeanStdFilter"),
    "filter": other("observation_filter...MeanStd", observation_filter="NoFilter"),
    "model": other("An array of the weights has the wrong shape", error=PolicyError, model={"fcnet_hiddens": (9,)}),
}
"""Runs of which a checkpoint of PPO on CartPole is not: a trainer, and its error."""


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
        sizes = {"num_envs_per_worker": 3, "train_batch_size": 30, "sgd_minibatch_size": 30}
        with PPOTrainer("CartPole-v1", {**PPO, **sizes, "lr_schedule": None, "lr": 0.125, "gamma": 0.5}) as trainer:
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
            refused(ConfigError, trainer.train, says="learn=False")

    def test_from_checkpoint_for_evaluation_refuses_changes_of_learning(self, path):
        opened = partial(PPOTrainer.from_checkpoint, path, learn=False)
        changed = {"lr": 0.5, "num_workers": 2, "train_batch_size": 4000, "evaluation_interval": 1, "lambda": 0.5}
        for key, value in changed.items():
            says = f"{key}...has no effect here...learn=False), config key '{key}...fix:      leave it out, or open"
            refused(ConfigError, opened, says=says, **{key: value})
        says = "explore has no effect here...got:      False\n...evaluation_config"
        refused(ConfigError, opened, says=says, explore=False)
        changes = {"evaluation_num_episodes": 2, "explore": True, "num_envs_per_worker": 2, "callbacks": None}
        with opened(**changes, num_workers=0) as trainer:
            assert len(trainer.evaluate()["episode_rewards"]) == 2

    def test_a_change_has_an_effect_or_is_refused(self, path):
        opened = partial(Trainer.from_checkpoint, path)
        raised(ConfigError, opened, says="lr has no effect: lr_schedule is...lr_schedule=None", lr=1e-5)
        says = "kl_coeff has no effect: it is an initial value...0.2, the value of the saved run"
        refused(ConfigError, opened, says=says, kl_coeff=0.5)

    def test_a_change_of_a_spec_has_an_effect_or_is_refused(self, path):
        def multiagent(**config):
            return {"policies": {"default_policy": (None, None, None, config)}}

        says = "kl_coeff has no effect: it is an initial value...default_policy"
        refused(ConfigError, Trainer.from_checkpoint, path, says=says, multiagent=multiagent(kl_coeff=0.5))
        with Trainer.from_checkpoint(path, multiagent=multiagent(kl_target=0.5)) as trainer:
            assert trainer.get_policy().config.kl_target == 0.5

    def test_an_initial_value_may_be_left_out_of_a_spec(self):
        policy = SAC.make_policy(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), {"model": {"fcnet_hiddens": [4]}})
        saved = {"class": "rollax.algorithms.sac:SAC", "config": policy.config.changed(initial_alpha=0.5).to_json()}
        check = partial(refuse_ignored_initial_values_in_specs, {"a": policy}, {"a": saved}, "here")
        check()
        policy.config = policy.config.changed(initial_alpha=0.25)
        refused(ConfigError, check, says="initial_alpha has no effect...'a' of here")

    def test_missing_checkpoint_is_refused(self, tmp_path):
        refused(CheckpointError, Trainer.from_checkpoint, tmp_path / "checkpoint_000007", says="checkpoint_000007")

    def test_an_older_format_names_the_version_that_saved_it(self, path, monkeypatch):
        manifest, saved_by = from_json_bytes((path / "manifest.json").read_bytes()), checkpoint.__version__
        (path / "manifest.json").write_bytes(to_json_bytes({**manifest, "format_version": 2}))
        says = f"older format...saved by an earlier state of rollax {saved_by}\n...format 3"
        refused(CheckpointError, load_policy, path, says=says)
        monkeypatch.setattr(checkpoint, "__version__", "9.0")
        says = f"saved by rollax {saved_by}\n...of rollax 9.0\n...with the rollax that saved it"
        refused(CheckpointError, Trainer.from_checkpoint, path, says=says)

    @pytest.mark.parametrize("run", long_except({"algorithm"}, OTHERS))
    def test_other_runs_are_refused(self, path, run):
        make, says, error = run
        refuses(make(), path, says, error)

    @pytest.mark.long
    def test_actions_in_another_order_are_refused(self, tmp_path):
        def env(*keys):
            parts = {key: gym.spaces.Discrete(2) for key in keys}
            return lambda context: gym.wrappers.TransformAction(
                gym.make("CartPole-v1"), lambda action: action["left"], gym.spaces.Dict(**parts)
            )

        path = PPOTrainer(env("left", "right"), PPO).save(tmp_path)
        PPOTrainer(env("left", "right"), PPO).restore(path)
        refuses(PPOTrainer(env("right", "left"), PPO), path, "different action_space of policy")

    def test_a_checkpoint_is_read_once(self, path, monkeypatch):
        reads = []
        read = checkpoint.read
        monkeypatch.setattr(checkpoint, "read", lambda path: reads.append(path) or read(path))
        Trainer.from_checkpoint(path).stop()
        assert reads == [path]

    def test_the_error_of_another_algorithm_names_its_own_trainer(self, path):
        says = "different algorithm...fix:      use Trainer.from_checkpoint"
        refused(CheckpointError, PGTrainer.from_checkpoint, path, says=says)

    def test_changes_that_do_not_fit_are_named(self, path):
        """`from_checkpoint` is no fix for its own error."""
        says = "different observation_filter...fix:      open it with the environment and config of the saved run"
        error = refused(CheckpointError, PPOTrainer.from_checkpoint, path, says=says, observation_filter="NoFilter")
        assert str(error).endswith("changed here: observation_filter")


class TestSaving:
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
        refused(NonFiniteError, trainer.save, tmp_path, says="layer.bias")
        assert not list(tmp_path.iterdir())
