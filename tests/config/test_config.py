from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import Field

from rollax import PPOConfig
from rollax.config import Lambda, SchedulePoints, TrainerConfig, resolve_config, validation_errors
from rollax.config.off_policy_groups import QLearningFields
from rollax.config.replay_groups import ReplayFields
from rollax.errors import ConfigError, SpaceError
from rollax.models.config import ModelConfig

CLASS = "a class (not an instance of it), or"


class SomeConfig(TrainerConfig):
    """What an algorithm adds."""

    train_batch_size: int = Field(default=4000, ge=1, description="steps of one update")
    sgd_minibatch_size: int = Field(default=128, ge=1, description="rows of one gradient step")
    lambda_: Lambda = 0.95
    clip_param: float = Field(default=0.3, gt=0, lt=1, description="ε, the clip of the ratio")
    clip_param_schedule: SchedulePoints | None = Field(default=None, description="[[timestep, ε], ...]")

    def check(self) -> None:
        super().check()
        self.refuse_larger("sgd_minibatch_size", "train_batch_size")


class ExploringConfig(QLearningFields, TrainerConfig):
    """One with a schedule of probabilities."""


class Callbacks:
    pass


def resolve(config=None, /, **overrides) -> SomeConfig:
    return resolve_config(SomeConfig, config, **overrides)


def refusal(config=None, /, **overrides) -> str:
    with pytest.raises(ConfigError) as error:
        resolve(config, **overrides)
    return str(error.value)


class TestAccepts:
    def test_plain_dict(self):
        config = resolve({"lambda": 0.5, "lr": 1, "model": {"fcnet_hiddens": [8, 9]}, "env_config": {"length": 3}})
        assert (config.lambda_, config.lr, config.env_config) == (0.5, 1.0, {"length": 3})
        assert config.model == ModelConfig(fcnet_hiddens=(8, 9))

    def test_numbers_as_yaml_and_numpy_give_them(self):
        given = {"lr": "1e-3", "train_batch_size": np.int64(400), "gamma": np.float32(0.5), "evaluation_interval": 7.0}
        config = resolve(given)
        assert (config.lr, config.train_batch_size, config.gamma, config.evaluation_interval) == (1e-3, 400, 0.5, 7)

    @pytest.mark.parametrize("given", [False, 0, np.bool_(False), np.int64(0)])
    def test_booleans_as_numpy_and_0_or_1(self, given):
        assert resolve(explore=given).explore is False

    def test_paths(self):
        assert resolve(output=Path("runs") / "data").output == str(Path("runs/data"))

    def test_config_of_the_class_is_itself(self):
        config = SomeConfig(lr=0.1)
        assert resolve(config) is config

    def test_overrides_replace(self):
        config = resolve({"lambda": 0.5, "lr": 0.1, "model": {"free_log_std": True}}, lambda_=0.6, model={})
        assert (config.lambda_, config.lr, config.model) == (0.6, 0.1, ModelConfig())
        assert resolve(config, **{"lambda": 0.7}).lambda_ == 0.7
        assert config.changed(lr=0.2).model_dump() == {**config.model_dump(), "lr": 0.2}

    def test_a_config_that_extends_the_class_stays_what_it_is(self):
        config = resolve_config(TrainerConfig, SomeConfig(clip_param=0.1), gamma=0.5)
        assert config == SomeConfig(clip_param=0.1, gamma=0.5)
        assert type(config) is SomeConfig

    @pytest.mark.parametrize(("given", "kept"), [(True, True), (1, 1.0), (0.5, 0.5), (False, False), (None, None)])
    def test_clip_rewards_tells_true_from_1(self, given, kept):
        got = resolve({"clip_rewards": given}).clip_rewards
        assert got == kept
        assert type(got) is type(kept)


class TestRefuses:
    @pytest.mark.parametrize(
        ("config", "key", "hint"),
        [
            ({"train_batchsize": 1}, "train_batchsize", "did you mean 'train_batch_size'?"),
            ({"Gamma": 0.9}, "Gamma", "did you mean 'gamma'?"),
            ({"lamda": 0.9}, "lamda", "did you mean 'lambda'?"),
            ({"model": {"fcnet_hidden": [3]}}, "model.fcnet_hidden", "did you mean 'fcnet_hiddens'?"),
            ({"multiagent": {"policy": {}}}, "multiagent.policy", "in rollax it is 'policies'"),
            ({"evaluation_config": {"model": {"fcnet_hidden": [3]}}}, "model.fcnet_hidden", "evaluation_config"),
            ({"model": {"fcnet_hiddens": [8] * 1001}}, "model.fcnet_hiddens", "1000"),  # building it would not end
            ({"model": {"conv_filters": [[8, 3, 1]] * 1001}}, "model.conv_filters", "1000"),
            ({"zzzz": 1}, "zzzz", "sorted(SomeConfig.model_fields) lists all keys"),
            ({"input": "x"}, "input", "learns from its own experience"),
            ({"record_env": True}, "record_env", "record_dir"),
            ({"wandb": True}, "wandb", "fit(loggers=[...])"),
            ({"use_lstm": True}, "use_lstm", "it is a key of 'model'"),
            ({"policies": {}}, "policies", "it is a key of 'multiagent'"),
            ({"model": {"lr": 1}}, "model.lr", "a key of the config itself"),
            ({"learning_rate": 1}, "learning_rate", "in rollax it is 'lr': α, step size"),
            ({"net_arch": [3]}, "net_arch", "in rollax it is 'model.fcnet_hiddens'"),
            ({"policy_history": 2}, "policy_history", "similar keys: max_policy_lag, "),
        ],
    )
    def test_1_unknown_key(self, config, key, hint):
        message = refusal(config)
        assert f"config key '{key}' (SomeConfig)" in message
        assert hint in message

    @pytest.mark.parametrize(
        ("config", "key", "got", "expected"),
        [
            ({"gamma": 1.5}, "gamma", "1.5 (float)", "0 <= gamma <= 1"),
            ({"gamma": float("nan")}, "gamma", "nan (float)", "a finite number"),
            ({"gamma": True}, "gamma", "True (bool)", "a number"),
            ({"evaluation_interval": True}, "evaluation_interval", "True (bool)", "a number"),
            ({"model": {"lstm_cell_size": True}}, "model.lstm_cell_size", "True (bool)", "a number"),
            ({"model": {"fcnet_hiddens": [True]}}, "model.fcnet_hiddens", "[True] (list)", "numbers (no booleans)"),
            ({"model": {"fcnet_hiddens": np.array([True])}}, "model.fcnet_hiddens", "array([ True])", "numbers (no b"),
            ({"model": {"fcnet_hiddens": [np.True_]}}, "model.fcnet_hiddens", "[", "numbers (no booleans)"),
            ({"lr_schedule": [[True, 0.1]]}, "lr_schedule", "[[True, 0.1]] (list)", "numbers (no booleans) or None"),
            ({"explore": "no"}, "explore", "'no' (str)", "a boolean, true or false (no string)"),
            ({"explore": 2}, "explore", "2 (int)", "a valid boolean"),
            ({"sample_async": "false"}, "sample_async", "'false' (str)", "a boolean, true or false (no string) or"),
            ({"clip_rewards": "yes"}, "clip_rewards", "'yes' (str)", "a boolean, true or false (no string) or"),
            ({"model": {"use_lstm": "yes"}}, "model.use_lstm", "'yes' (str)", "a boolean, true or false (no string)"),
            ({"lambda": 2}, "lambda", "2 (int)", "0 <= lambda <= 1"),
            ({"lambda_": 2}, "lambda", "2 (int)", "0 <= lambda <= 1"),
            ({"clip_param": 1}, "clip_param", "1 (int)", "0 < clip_param < 1"),
            ({"lr": "fast"}, "lr", "'fast' (str)", "a valid number"),
            ({"train_batch_size": 10.5}, "train_batch_size", "10.5 (float)", "a valid integer"),
            ({"evaluation_interval": 0}, "evaluation_interval", "0 (int)", "1 <= evaluation_interval"),
            ({"callbacks": print}, "callbacks", "<built-in function print>", f"{CLASS} a list of classes or None\n"),
            ({"model": {"custom_model": print}}, "model.custom_model", "<", f"{CLASS} 'module:Class' or None\n"),
            ({"grad_clip": 0}, "grad_clip", "0 (int)", "0 < grad_clip or None"),
            ({"model": {"fcnet_hiddens": 8}}, "model.fcnet_hiddens", "8 (int)", "a list"),
            ({"clip_param_schedule": 0.5}, "clip_param_schedule", "0.5 (float)", "a list or None"),
            ({"batch_mode": "x"}, "batch_mode", "'x' (str)", "'truncate_episodes' or 'complete_episodes'"),
            ({"clip_rewards": -1}, "clip_rewards", "-1 (int)", "a valid boolean or greater than 0"),
            ({"clip_rewards": 0}, "clip_rewards", "0 (int)", "a valid boolean or greater than 0"),
            ({"callbacks": 3}, "callbacks", "3 (int)", "a class"),
            ({"observation_space": "Box"}, "observation_space", "'Box' (str)", "an instance of Space"),
            ({"model": 3}, "model", "3 (int)", "a valid dictionary or instance of ModelConfig"),
            ({"model": {"fcnet_hiddens": [8, "x"]}}, "model.fcnet_hiddens[1]", "'x' (str)", "a valid integer"),
            ({"lr_schedule": [[0, 1], [5, -1]]}, "lr_schedule[1][1]", "-1 (int)", "greater than or equal to 0"),
            ({"multiagent": {"policies": 3}}, "multiagent.policies", "3 (int)", "a valid dictionary"),
        ],
    )
    def test_2_wrong_type_or_range(self, config, key, got, expected):
        message = refusal(config)
        assert f"config key '{key}' (SomeConfig)" in message
        assert f"got:      {got}" in message
        assert f"expected: {expected}" in message

    def test_2_says_what_the_field_is(self):
        assert "gamma: γ, the discount of rewards per step (default 0.99)" in refusal({"gamma": 2})

    @pytest.mark.parametrize("value", [[[0, 1e-3], [100, 1e-4]], lambda remaining: 1e-3 * remaining])
    def test_2_says_where_a_schedule_goes(self, value):
        assert "a schedule is given as lr_schedule: [[timestep, value], ...]" in refusal(lr=value)
        assert "a schedule is given" not in refusal(gamma=value)

    def test_several_mistakes_are_all_named(self):
        message = refusal({"gamma": 2, "horizn": 3, "lr": -1})
        assert "Unknown config key 'horizn'" in message
        assert "also wrong: gamma, lr" in message
        keys = {"learning_rate": 1e-3, "max_grad_norm": 1.0, "clip_range": 0.1, "horizn": 3}
        assert "also wrong: max_grad_norm (here grad_clip), clip_range (here clip_param), horizn" in refusal(keys)
        message = refusal(clip_param_schedule=["x"] * 5000)
        assert "clip_param_schedule[20] and 979 more" in message
        assert len(message) < 2000
        message = refusal(model={"net_arch": [8], "activation_fn": "relu"})
        assert "also wrong: model.activation_fn (here fcnet_activation)" in message

    def test_3_incompatible_sizes(self):
        assert "sgd_minibatch_size=5000, train_batch_size=4000" in refusal({"sgd_minibatch_size": 5000})

    def test_keywords_and_validation_raise_the_same(self):
        assert "0 <= gamma <= 1" in refusal(gamma=2)
        for make in (lambda: SomeConfig(gamma=2), lambda: SomeConfig.model_validate({"gamma": 2})):
            with pytest.raises(ConfigError, match="0 <= gamma <= 1"):
                make()

    @pytest.mark.parametrize("points", [[], [[5, 1], [5, 2]], [[5, 1], [4, 2]]])
    def test_schedule_out_of_order(self, points):
        assert "config key 'clip_param_schedule'" in refusal({"clip_param_schedule": points})

    def test_a_probability_above_1(self):
        with pytest.raises(ConfigError, match=r"epsilon_schedule\[0\]\[1\](.*\n)*.*less than or equal to 1"):
            resolve_config(ExploringConfig, {"epsilon_schedule": [[0, 7], [10, 0]]})

    @pytest.mark.parametrize("config", [3, ["lr"], {3: 4}, TrainerConfig()])
    def test_no_config(self, config):
        assert "expected: a SomeConfig, or a dict" in refusal(config)

    def test_unusable_space(self):
        with pytest.raises(SpaceError, match="observation_space"):
            resolve({"observation_space": spaces.Text(3)})


class TestMultiAgent:
    @pytest.mark.parametrize(
        ("ids", "ordered"), [(["b", "a"], ["b", "a"]), (("b", "a"), ["b", "a"]), ({"b", "a", "c"}, ["a", "b", "c"])]
    )
    def test_accepts_the_ids_of_policies_alone(self, ids, ordered):
        config = resolve({"multiagent": {"policies": ids, "policy_mapping_fn": lambda agent: "a"}})
        assert list(config.multiagent.policies.items()) == [(policy_id, None) for policy_id in ordered]

    def test_accepts(self):
        policies = {"a": None, "b": (None, None, None, {"gamma": 0.85})}
        config = resolve(
            {"multiagent": {"policies": policies, "policy_mapping_fn": lambda agent: "a", "policies_to_train": ["b"]}}
        )
        assert config.multiagent.policies == policies
        assert config.multiagent.policies_to_train == ("b",)
        assert resolve({"multiagent": {"policies": {"only": None}}}).multiagent.policy_mapping_fn is None
        assert resolve({"multiagent": {"policies_to_train": ["default_policy"]}})

    def test_the_size_of_an_update_belongs_to_the_trainer_where_nothing_is_replayed(self):
        multiagent = {"policies": {"a": (None, None, None, {"train_batch_size": 1000})}}
        message = refusal({"multiagent": multiagent})
        assert "train_batch_size has no effect here" in message
        assert "multiagent.policies['a'], config key 'train_batch_size'" in message
        resolve({"multiagent": multiagent, "train_batch_size": 1000})
        resolve_config(ReplayFields, {"multiagent": multiagent})  # rows of this policy's updates

    @pytest.mark.parametrize(
        ("multiagent", "message"),
        [
            ({"policies": {"a": None, "b": None}}, "Several policies require a policy mapping"),
            ({"policy_mapping_fn": lambda agent: "a"}, "A policy mapping is given, but no policies"),
            ({"policies": {"car1": None}, "policies_to_train": ["car2"]}, "did you mean 'car1'?"),
            ({"policies": {"a": None}, "policy_mapping_fn": "a"}, "callable"),
        ],
    )
    def test_refuses(self, multiagent, message):
        assert message in refusal({"multiagent": multiagent})


class TestDerived:
    def test_schedule(self):
        config = resolve({"lr": 0.5, "clip_param_schedule": [[0, 0.2], [100, 0.0]]})
        assert config.schedule("lr")(10**6) == 0.5
        assert config.schedule("clip_param")(50) == pytest.approx(0.1)
        assert config.schedule("gamma")(50) == 0.99

    def test_for_evaluation(self):
        config = resolve(
            {"evaluation_interval": 3, "lambda": 0.5, "evaluation_config": {"env_config": {"x": 1}, "lambda": 0.25}}
        )
        evaluation = config.for_evaluation()
        assert (evaluation.explore, evaluation.env_config, evaluation.lambda_) == (False, {"x": 1}, 0.25)
        assert (evaluation.evaluation_interval, evaluation.evaluation_config) == (None, {})
        assert config.changed(evaluation_config={"explore": True}).for_evaluation().explore

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            *(("evaluation_num_episodes", 3), ("evaluation_interval", 1), ("num_workers", 2), ("lr", 0.5)),
            *(("output", "data"), ("observation_filter", "MeanStdFilter")),
        ],
    )
    def test_keys_that_evaluation_does_not_read(self, key, value):
        with pytest.raises(ConfigError, match=rf"{key} has no effect here(.|\n)*evaluation_config(.|\n)*set {key} in"):
            resolve({"evaluation_config": {key: value}})
        # A copy of the trainer's config, and what evaluation does in any case, are no mistakes.
        config = resolve({key: value, "evaluation_config": {key: value}})
        assert config.changed(**{key: SomeConfig.model_fields[key].default}).for_evaluation()
        resolve({"num_workers": 2, "evaluation_config": {"num_workers": 0, "evaluation_interval": None}})

    def test_a_copy_of_the_trainers_keys_is_accepted_in_evaluation(self):
        copied = {"lr_schedule": [[0, 1]], "train_batch_size": "500"}  # not yet of the types that the config has
        resolve({**copied, "evaluation_config": copied})

    def test_every_field_says_what_it_is(self):
        for name, field in SomeConfig.model_fields.items():
            assert field.description, name


def test_of_very_many_wrong_entries_some_are_read(monkeypatch):
    read, located = [], validation_errors._located
    monkeypatch.setattr(validation_errors, "_located", lambda *args: read.append(1) or located(*args))
    with pytest.raises(ConfigError, match="policies_to_train"):
        PPOConfig(multiagent={"policies": {"a": None}, "policies_to_train": [1] * 5000})
    assert 0 < len(read) <= 1000
