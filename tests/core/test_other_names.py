"""Names of other libraries: the errors for them name those of rollax."""

import copy
import inspect
import pickle
import re

import gymnasium as gym
import pytest

import rollax
from rollax import PPO, ConfigError, DQNTrainer, PPOConfig, PPOTrainer, SpaceError
from rollax.core.replacements import ACT, CONFIG, EPISODE, EVALUATE, FIT, PUBLIC, RUNNER, TRAINER
from rollax.rollout.episode import Episode
from tests.env.refused import refused


@pytest.fixture(scope="module")
def trainer():
    with PPOTrainer("CartPole-v1", {"train_batch_size": 16, "sgd_minibatch_size": 8}) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        ("PPOTrainer", "learn", "fit(stop={'timesteps_total': n})"),
        ("PPOTrainer", "predict", "compute_single_action(obs)"),
        ("PPOTrainer", "load", "PPOTrainer.from_checkpoint(path)"),
        ("PPOTrainer", "save_checkpoint", "save(directory)"),
        ("PPOTrainer", "close", "stop()"),
        ("PolicyRunner", "predict", "compute_single_action(obs)"),
        ("PolicyRunner", "learn", "from_checkpoint"),
        ("PolicyRunner", "observation_space", "policy.observation_space"),
    ],
)
def test_methods_of_trainers_and_loaded_policies(trainer, kind, name, ours):
    asked = trainer if kind == "PPOTrainer" else trainer.worker.runners["default_policy"]
    with pytest.raises(AttributeError, match=f"'{kind}' object has no attribute '{name}'.*{re.escape(ours)}"):
        getattr(asked, name)
    assert not hasattr(asked, name)


def test_methods_of_trainer_classes():
    with pytest.raises(AttributeError, match="type object 'DQNTrainer' has no attribute 'load'.*DQNTrainer.from_check"):
        DQNTrainer.load  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(PPOTrainer, "get_default_config")


def test_a_subclass_may_have_these_names():
    class Own(PPOTrainer):
        @classmethod
        def load(cls):
            return "loaded"

    assert Own.load() == "loaded"


@pytest.mark.parametrize("name", ["policy", "name_of_its_own"])
def test_the_error_of_a_property_is_kept(name):
    class Own(PPOTrainer):
        @property
        def policy(self):
            return self.absent  # pyright: ignore[reportAttributeAccessIssue]

        name_of_its_own = policy

    with pytest.raises(AttributeError, match="'Own' object has no attribute 'absent'$"):
        getattr(Own.__new__(Own), name)


def test_methods_of_configs():
    config = PPOConfig(lr=1e-3)
    with pytest.raises(AttributeError, match=r"'PPOConfig' object has no attribute 'environment'.*PPOConfig\(env="):
        config.environment("CartPole-v1")  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"'build'.*PPOTrainer\(config=config\)"):
        config.build()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="'PPOConfig' object has no attribute 'no_such_name'$"):
        config.no_such_name  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config  # noqa: S301


def test_attributes_of_episodes():
    episode = Episode(7, 0, {"reward": [2.0], "length": [3]})
    with pytest.raises(AttributeError, match=r"no attribute 'last_info_for'; in rollax: last_infos\[agent_id"):
        episode.last_info_for  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert [name for name in EPISODE if hasattr(episode, name)] == []


@pytest.mark.parametrize(
    ("name", "ours"),
    [("MaskablePPO", "PPOTrainer"), ("DefaultCallbacks", "Callbacks"), ("make_vec_env", "num_envs_per")],
)
def test_public_names(name, ours):
    with pytest.raises(ImportError, match=f"'{name}'; in rollax: .*{ours}"):
        exec(f"from rollax import {name}")  # noqa: S102  Python replaces an AttributeError here


def test_public_names_are_no_attributes():
    assert not hasattr(rollax, "MaskablePPO")
    assert getattr(rollax, "Monitor", None) is None
    with pytest.raises(AttributeError, match="'MaskablePPO'; in rollax: PPOTrainer"):
        rollax.MaskablePPO  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_classes_of_the_user_that_follow_the_trainers():
    class Own:
        @classmethod
        def load(cls):
            return cls.__name__

        def __getattr__(self, name):
            return name.upper() if name == "answer" else object.__getattribute__(self, name)

    class OwnTrainer(PPOTrainer, Own):
        pass

    assert OwnTrainer.load() == "OwnTrainer"
    made = object.__new__(OwnTrainer)
    assert getattr(made, "answer") == "ANSWER"  # noqa: B009
    with pytest.raises(AttributeError, match="'learn'; in rollax"):
        getattr(made, "learn")  # noqa: B009


def test_entries_are_not_names_of_rollax(trainer):
    """An entry that exists would never be shown."""
    assert [name for name in TRAINER if hasattr(trainer, name)] == []
    assert [name for name in RUNNER if hasattr(trainer.worker.runners["default_policy"], name)] == []
    configs = [getattr(rollax, name) for name in rollax.__all__ if name.endswith("Config")]
    assert [name for name in CONFIG for kind in configs if hasattr(kind, name) or name in kind.model_fields] == []
    assert [name for name in PUBLIC if name in rollax.__all__] == []


CALLS = [found for hint in TRAINER.values() if (found := re.match(r"(\w+)(?:\.(steps))?[(,\[]", hint))]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.string)
def test_replacements_exist(trainer, call):
    """The name that a hint begins with."""
    name, inner = call.groups()
    assert hasattr(rollax, name) or hasattr(trainer, name)
    assert inner is None or hasattr(getattr(trainer, name), inner)


@pytest.mark.parametrize(
    ("arguments", "keys", "message"),
    [
        (("MlpPolicy", gym.make("CartPole-v1")), {}, r"first argument is the environment(.|\n)*MlpPolicy(.|\n)*model"),
        (({"lr": 1e-3}, "CartPole-v1"), {}, r"first argument is the environment(.|\n)*config=\{\.\.\.\}"),
        ((PPOConfig(),), {}, r"first argument is the environment"),
        (("CartPole-v1",), {"lr": 1e-3}, r"PPOTrainer\(env=\.\.\., config=\{'lr': \.\.\.\}\)"),
        (("CartPole-v1",), {"learning_rate": 1e-3}, r"config=\{'lr': \.\.\.\}"),
        (
            ("CartPole-v1",),
            {"fcnet_hiddens": [8], "gae_lambda": 0.9, "use_lstm": True, "verbose": 1},
            r"config=\{'lambda': \.\.\., 'model': \{'fcnet_hiddens': \.\.\., 'use_lstm': \.\.\.\}\}",
        ),
    ],
)
def test_arguments_of_other_trainers(arguments, keys, message):
    with pytest.raises(ConfigError, match=message):
        PPOTrainer(*arguments, **keys)


@pytest.mark.parametrize("keys", [{}, {"verbose": 1}])
def test_an_algorithm_called_as_a_trainer_names_the_trainer(keys):
    refused(SpaceError, PPO, "MlpPolicy", "CartPole-v1", **keys, says="PPOTrainer")


def test_settings_of_an_algorithm_are_in_its_config(trainer):
    policy = trainer.get_policy()
    refused(ConfigError, PPO, policy.observation_space, policy.action_space, lr=1e-3, says="config")


@pytest.mark.parametrize(
    ("method", "arguments", "hint"),
    [
        ("fit", {"total_timesteps": 1000}, "stop={'timesteps_total': n}"),
        ("fit", {"training_iteration": 3}, "stop={'training_iteration': ...}"),
        ("fit", {"stop": {"training_iteration": 1}, "checkpoint_frequenzy": 3}, "did you mean 'checkpoint_frequency'?"),
        ("evaluate", {"n_eval_episodes": 3}, "num_episodes"),
        ("evaluate", {"env": "CartPole-v1"}, "PPOTrainer.from_checkpoint(path, learn=False, env=...)"),
        ("record", {"out": "data", "episodes": 3}, "num_episodes"),
        ("compute_single_action", {"obs": None, "deterministic": True}, "explore=not deterministic"),
        ("compute_actions", {"obs": None}, "the first argument"),
    ],
)
def test_arguments_of_methods(trainer, method, arguments, hint):
    with pytest.raises(TypeError, match=rf"PPOTrainer\.{method}\(\).*{re.escape(hint)}"):
        getattr(trainer, method)(**arguments)


def test_arguments_of_a_loaded_policy(trainer):
    with pytest.raises(TypeError, match=r"PolicyRunner\.compute_single_action\(\).*explore=not deterministic"):
        trainer.worker.runners["default_policy"].compute_single_action(None, deterministic=True)


@pytest.mark.parametrize(
    ("others", "methods"),
    [(FIT, ["fit"]), (EVALUATE, ["evaluate"]), (ACT, ["compute_single_action", "compute_actions"])],
)
def test_arguments_of_others_are_none_of_rollax(others, methods):
    """An entry that is an argument of all these methods would never be shown."""
    arguments = [inspect.signature(getattr(PPOTrainer, method)).parameters for method in methods]
    assert [name for name in others if all(name in known for known in arguments)] == []
