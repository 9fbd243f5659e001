"""A key that is given and has no effect is refused, however it is given; and defaults of inherited fields."""

import inspect
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pydantic import ConfigDict, Field, PydanticUserError, field_validator

from rollax.algorithms.a3c import A2CConfig, A3CConfig
from rollax.algorithms.apex import ApexDDPGConfig, ApexDQNConfig
from rollax.algorithms.appo import APPOConfig
from rollax.algorithms.ddpg import TD3Config
from rollax.algorithms.dqn import DQN, DQNConfig, RainbowConfig
from rollax.algorithms.impala import IMPALAConfig
from rollax.algorithms.pg import PGConfig
from rollax.algorithms.ppo import PPOConfig
from rollax.algorithms.qmix import QMIXConfig
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.algorithms.sac import SACConfig
from rollax.config import SchedulePoints, TrainerConfig, resolve_config
from rollax.config.field_group import FieldGroup, inherited, refuse_ignored_initial_values
from rollax.errors import ConfigError
from rollax.models.config import CriticConfig, ModelConfig
from rollax.offline.iql import IQLConfig
from rollax.offline.marwil import BCConfig, MARWILConfig
from tests.env.refused import raised, refused

POINTS = ((0, 0.5), (10, 0.25))
BOX = spaces.Box(0, 1, (2,), np.float32)


class OwnConfig(TrainerConfig):
    weight: float = Field(default=1.0, description="of a loss of one's own")
    weight_schedule: SchedulePoints | None = Field(default=None, description="[[timestep, weight], ...]")


# Config class, other keys, keys without effect beside them, keys of which one must be set for an effect.
MEMORY, OWN = {"use_gru": True}, {"custom_model": "a:Model"}
CASES = [
    (PPOConfig, {"lr_schedule": POINTS}, {"lr": 1e-5}, {"lr_schedule": None}),
    (PPOConfig, {"clip_param_schedule": POINTS}, {"clip_param": 0.1}, {"clip_param_schedule": None}),
    (PPOConfig, {"entropy_coeff_schedule": POINTS}, {"entropy_coeff": 0.5}, {"entropy_coeff_schedule": None}),
    (PPOConfig, {}, {"kl_target": 0.5}, {"kl_coeff": 0.5}),
    (PPOConfig, {}, {"critic_space": BOX}, {"centralized_critic": True}),
    (PPOConfig, {"centralized_critic": True}, {"model": {"vf_share_layers": True}}, {"centralized_critic": False}),
    (PPOConfig, {}, {"model": {"lstm_cell_size": 5}}, {"model": {"lstm_cell_size": 5, **MEMORY}}),
    (PPOConfig, {}, {"model": {"custom_model_config": {"a": 1}}}, {"model": {"custom_model_config": {"a": 1}, **OWN}}),
    (PPOConfig, {}, {"remote_env_timeout_s": 5.0}, {"remote_worker_envs": True}),
    (PPOConfig, {"recreate_failed_workers": False}, {"max_num_worker_restarts": 5}, {"recreate_failed_workers": True}),
    (A3CConfig, {}, {"train_batch_size": 50}, {"rollout_fragment_length": "auto"}),
    (APPOConfig, {}, {"kl_coeff": 0.5}, {"use_kl_loss": True}),
    (APPOConfig, {"vtrace": False}, {"target_update_frequency": 5}, {"vtrace": True}),
    (IMPALAConfig, {}, {"decay": 0.5}, {"opt_type": "rmsprop"}),
    (PPOConfig, {}, {"model": {"log_std_init": -2.0}}, {"model": {"log_std_init": -2.0, "free_log_std": True}}),
    (IMPALAConfig, {}, {"replay_buffer_num_slots": 5}, {"replay_proportion": 0.5}),
    (DQNConfig, {"epsilon_schedule": POINTS}, {"initial_epsilon": 0.5}, {"epsilon_schedule": None}),
    (DQNConfig, {"epsilon_schedule": POINTS}, {"final_epsilon": 0.5}, {"epsilon_schedule": None}),
    (DQNConfig, {"epsilon_schedule": POINTS}, {"epsilon_timesteps": 5}, {"epsilon_schedule": None}),
    (DQNConfig, {"noisy": True}, {"epsilon_schedule": POINTS}, {"noisy": False}),
    (DQNConfig, {"exploration": "SoftQ"}, {"initial_epsilon": 0.5}, {"exploration": "ParameterNoise"}),
    (DQNConfig, {}, {"temperature": 0.5}, {"exploration": "SoftQ"}),
    (DQNConfig, {}, {"parameter_noise": 0.5}, {"exploration": "ParameterNoise"}),
    (DQNConfig, {}, {"v_max": 5.0}, {"num_atoms": 51}),
    (DQNConfig, {"num_atoms": 51}, {"distribution_error": "cross_entropy"}, {"prioritized_replay": True}),
    (DQNConfig, {}, {"sigma0": 0.25}, {"noisy": True}),
    (DQNConfig, {"model": OWN}, {"hiddens": (8,)}, {"model": {}}),
    (DQNConfig, {}, {"prioritized_replay_alpha": 0.5}, {"prioritized_replay": True}),
    (DQNConfig, {}, {"input_config": {"format": "csv"}}, {"input": "a.csv"}),
    (DQNConfig, {"input": "a", "input_folder": "b"}, {"input_memory_gb": 1.0}, {"input_folder": None}),
    (RainbowConfig, {}, {"final_epsilon": 0.5}, {"noisy": False}),  # it is noisy by default
    (ApexDQNConfig, {"noisy": True}, {"worker_epsilon": 0.5}, {"noisy": False}),
    (QMIXConfig, {"mixer": "vdn"}, {"mixing_embed_dim": 5}, {"mixer": "qmix"}),
    (TD3Config, {"noise_scale_schedule": POINTS}, {"noise_scale": 0.5}, {"noise_scale_schedule": None}),
    (TD3Config, {"actor_lr": 0.1, "critic_lr": 0.1}, {"lr": 0.5}, {"critic_lr": None}),
    (TD3Config, {"actor_lr": 0.1, "critic_lr": 0.1}, {"lr_schedule": POINTS}, {"actor_lr": None}),
    (TD3Config, {"smooth_target_policy": False}, {"target_noise_clip": 0.25}, {"smooth_target_policy": True}),
    (TD3Config, {}, {"ou_theta": 0.5}, {"exploration": "OrnsteinUhlenbeckNoise"}),
    (SACConfig, {"actor_lr": 0.1, "critic_lr": 0.1, "alpha_lr": 0.0}, {"lr": 0.5}, {"alpha_lr": None}),
    (SACConfig, {}, {"noise_scale": 0.5}, {"exploration": "GaussianNoise"}),
    (SACConfig, {"alpha_lr": 0.0}, {"target_entropy": 0.5}, {"alpha_lr": 0.5}),
    (DQNConfig, {"input": {"data": 1, "sampler": 1}}, {"updates_per_step": 5}, {"then_online": True}),
    (MARWILConfig, {"beta": 0}, {"clip_rewards": True}, {"beta": 1}),
    (BCConfig, {}, {"clip_rewards": True}, {"model": {"lstm_use_prev_reward": True, "use_gru": True}}),
    (IQLConfig, {"beta": 0}, {"max_weight": 5.0}, {"beta": 1}),
    (OwnConfig, {"weight_schedule": POINTS}, {"weight": 0.5}, {"weight_schedule": None}),
]


@pytest.mark.parametrize(("config_class", "others", "idle", "switch"), CASES)
def test_a_key_without_effect(config_class: Any, others: dict, idle: dict[str, Any], switch: dict[str, Any]):
    (key, value), *_ = idle.items()
    inner = f".{next(iter(value))}" if key == "model" else ""
    named = next(iter([name for name in switch.get("model", {}) if name != inner[1:]] or switch))
    message = (
        rf"{key}{inner} has no effect(.|\n)*config key '{key}{inner}'(.|\n)*fix: +set .*{named}.* as well, or leave"
    )
    before = config_class(**others)
    stored = json.loads(json.dumps(before.to_json()))
    for give in (
        lambda: config_class(**others, **idle),
        lambda: resolve_config(config_class, {**others, **idle}),
        lambda: before.changed(**idle),
        lambda: config_class.from_json(stored, **idle),
        lambda: config_class(**others, evaluation_config=idle),
    ):
        with pytest.raises(ConfigError, match=message):
            give()
    assert before.changed(**{**idle, **switch}) != before


NEVER = {
    "vf_share_layers": (DQNConfig, SACConfig, TD3Config, QMIXConfig, PGConfig),
    "free_log_std": (DQNConfig, SACConfig, TD3Config, QMIXConfig),
}


@pytest.mark.parametrize(("key", "config_class"), [(key, each) for key, classes in NEVER.items() for each in classes])
def test_a_key_of_the_model_that_never_has_an_effect(key: str, config_class: Any):
    with pytest.raises(ConfigError, match=rf"model.{key} has no effect(.|\n)*fix: +leave model.{key} out"):
        config_class(model={key: True})


def test_settings_of_a_reader_that_is_ready():
    reader, settings = SimpleNamespace(trajectories=list), {"input_config": {"format": "csv"}}
    for data in (reader, [reader]):
        with pytest.raises(ConfigError, match=r"input_config has no effect(.|\n)*set input to a path or a function"):
            DQNConfig(input=data, **settings)
    DQNConfig(input=[reader, "a.csv"], **settings)
    DQNConfig(input=reader, **settings, off_policy_estimation_input="a.csv", off_policy_estimation_methods=("dm",))


def test_a_key_that_never_has_an_effect():
    with pytest.raises(ConfigError, match="initial_epsilon has no effect: each worker has a constant ε"):
        ApexDQNConfig(initial_epsilon=0.5)
    raised(ConfigError, DQNConfig, says="accept_off_policy_actions has no effect", accept_off_policy_actions=True)


def test_a_value_that_changes_nothing_is_accepted():
    assert PPOConfig(entropy_coeff_schedule=POINTS, entropy_coeff=PPOConfig().entropy_coeff).entropy_coeff == 0.0
    assert A2CConfig(train_batch_size=50).train_batch_size == 50  # unlike A3C, from which its fields come
    config = PPOConfig(lr=0.25).changed(lr_schedule=POINTS)
    assert config.changed(lr=0.25).lr == 0.25
    raised(ConfigError, config.changed, says="lr has no effect", lr=PPOConfig().lr)


def test_what_is_given_later_overrules_what_was_given_before():
    config = PPOConfig(lr=0.25)
    scheduled = config.changed(lr_schedule=POINTS)
    assert scheduled.schedule("lr")(0) == 0.5
    stored = PPOConfig.from_json(json.loads(json.dumps(scheduled.to_json())))
    # The value from before is kept, and has an effect again where the schedule goes.
    assert [c.changed(lr_schedule=None).schedule("lr")(0) for c in (scheduled, stored)] == [0.25, 0.25]
    assert stored.changed(gamma=0.5).for_evaluation().lr_schedule == POINTS
    assert TD3Config(lr=0.5, actor_lr=0.1).lr == 0.5  # the critics' still


def test_in_the_spec_of_a_policy():
    raised(ConfigError, PPOConfig(lr_schedule=POINTS).for_policy, PPOConfig, says="lr has no effect", lr=0.5)
    raised(ConfigError, PPOConfig(lr_schedule=POINTS).for_policy, DQNConfig, says="lr has no effect", lr=0.5)
    for_policy = PPOConfig(lr=0.5).changed(lr_schedule=POINTS).for_policy(DQNConfig, gamma=0.5)
    assert (for_policy.schedule("lr")(0), for_policy.gamma) == (0.5, 0.5)


def test_evaluation_keys_of_an_algorithm_are_not_those_of_policies_of_another():
    config = DQNConfig(evaluation_config={"explore": True, "final_epsilon": 0.5}, gamma=0.5)
    assert config.for_policy(PPOConfig) == PPOConfig(gamma=0.5)
    assert config.for_evaluation().for_policy(PPOConfig) == PPOConfig(gamma=0.5, explore=True)


def test_a_restored_config_gives_policies_of_other_algorithms_what_it_gave_them():
    config = PPOConfig(gamma=0.5)
    restored = PPOConfig.from_json(json.loads(json.dumps(config.to_json())), seed=1)
    assert restored.model_fields_set == {"gamma", "seed"}
    for one in (config, restored, restored.changed(explore=False)):
        of_policy = one.for_policy(DQN.config_class)
        assert (of_policy.gamma, of_policy.lr) == (0.5, DQNConfig().lr)


def test_a_custom_model_replaces_the_default_layers():
    model = {"custom_model": "a:Model", "fcnet_hiddens": (8,)}
    message = r"fcnet_hiddens has no effect: model.custom_model is 'a:Model'(.|\n)*'model.fcnet_hiddens'"
    with pytest.raises(ConfigError, match=message):
        PPOConfig(model=model)  # pyright: ignore[reportArgumentType]
    PPOConfig(model=model, centralized_critic=True)  # pyright: ignore[reportArgumentType]  whose layers they are
    PPOConfig(model={"custom_model": "a:Model", "max_seq_len": 5})  # pyright: ignore[reportArgumentType]


def test_first_values():
    refuse_ignored_initial_values(PPOConfig(kl_coeff=0.5), ("kl_coeff",), PPOConfig().to_json(), "")  # which was 0
    refuse_ignored_initial_values(APPOConfig(use_kl_loss=True, kl_coeff=0.5), ("kl_coeff",), APPOConfig().to_json(), "")
    changed = DQNConfig(exploration="ParameterNoise", parameter_noise=0.5)
    refuse_ignored_initial_values(changed, ("exploration", "parameter_noise"), DQNConfig().to_json(), "")
    with pytest.raises(ConfigError, match="parameter_noise has no effect"):
        refuse_ignored_initial_values(changed, ("parameter_noise",), changed.changed(parameter_noise=0.1).to_json(), "")
    stored = SACConfig().to_json()
    refuse_ignored_initial_values(SACConfig(initial_alpha=1.0), ("initial_alpha",), stored, "here")
    refuse_ignored_initial_values(SACConfig(initial_alpha=0.5), (), stored, "here")
    with pytest.raises(ConfigError, match=r"initial_alpha has no effect(.|\n)*for here\n.*0.5\n.*1.0"):
        refuse_ignored_initial_values(SACConfig(initial_alpha=0.5), ("initial_alpha",), stored, "here")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_rule_names_fields(name: str):
    config_class = get_trainer_class(name).config_class
    parts = {"model": ModelConfig, "critic_model": CriticConfig}
    inner = (f"{part}.{key}" for part, config in parts.items() for key in config.model_fields)
    fields = {*config_class.model_fields, *inner, "centralized_critic"}
    assert inherited(config_class, "initial_values").keys() <= fields
    for key, conditions in inherited(config_class, "requires").items():
        assert key in fields
        if not isinstance(conditions, str):
            alternatives = [conditions] if isinstance(conditions, dict) else conditions
            assert {other for condition in alternatives for other in condition} <= fields


EXPLORATION = {
    *("exploration", "temperature", "parameter_noise", "random_steps", "then_online"),
    *("initial_epsilon", "final_epsilon", "epsilon_timesteps", "epsilon_schedule"),
    *("worker_epsilon", "worker_epsilon_alpha"),
    *("noise_scale", "noise_scale_schedule", "ou_theta", "ou_sigma"),
}
"""The keys of single algorithms that evaluation reads, where it explores."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_of_the_keys_of_an_algorithm_evaluation_has_those_of_exploration(name: str):
    config_class = get_trainer_class(name).config_class
    places = inherited(config_class, "places")
    own = config_class.model_fields.keys() - TrainerConfig.model_fields.keys() - {"noise_size"}  # never has an effect
    assert {key for key in own if "evaluation" in places.get(key, ("evaluation",))} == own & EXPLORATION


def test_a_key_of_the_loss_has_no_effect_in_evaluation():
    with pytest.raises(ConfigError, match=r"clip_param has no effect here(.|\n)*evaluation_config"):
        PPOConfig(evaluation_config={"clip_param": 0.1})
    PPOConfig(clip_param=0.1, evaluation_config={"clip_param": 0.1})
    DQNConfig(evaluation_config={"explore": True, "final_epsilon": 0.5, "epsilon_timesteps": 1})


class Switched(FieldGroup):
    """A group for any config, with a condition for keys that only some configs have."""

    further_requires = {("weight", "in_no_config"): {"is_on": True}}
    is_on: bool = Field(default=False, description="whether the weight has an effect")


class SwitchedConfig(Switched, OwnConfig):
    pass


def test_a_group_adds_conditions_to_those_of_the_config_that_it_is_added_to():
    assert SwitchedConfig(weight=2.0, is_on=True).weight == 2.0
    raised(ConfigError, SwitchedConfig, says="is_on", weight=2.0)
    with pytest.raises(ConfigError, match="weight_schedule"):  # the other condition of the key
        SwitchedConfig(weight=2.0, is_on=True, weight_schedule=POINTS)


class TestDefaults:
    def test_the_nearest_class_counts(self):
        assert (DQNConfig().lr, ApexDQNConfig().lr, RainbowConfig().buffer_size) == (5e-4, 1e-4, 1_000_000)
        # Of the two sides of the family both bring defaults: that of replay shards, and that of DDPG.
        assert (ApexDDPGConfig().train_batch_size, ApexDDPGConfig().tau) == (512, 2e-3)
        assert ApexDDPGConfig().model.fcnet_hiddens == (400, 300)

    def test_a_field_that_does_not_exist(self):
        with pytest.raises(ConfigError, match=r"OfNoField.defaults\n.*train_batchsize\n.*'train_batch_size'"):

            class OfNoField(PPOConfig):
                defaults = {"train_batchsize": 1}

    def test_a_wrong_value(self):
        class Negative(PPOConfig):
            defaults = {"lr": -1.0}

        refused(ConfigError, Negative, says="0 <= lr")

    def test_fields_are_declared_once(self):
        bases = {base for name in ALGORITHMS for base in get_trainer_class(name).config_class.__mro__}
        declared = Counter(
            name
            for base in bases
            for name in inspect.get_annotations(base)
            if name in getattr(base, "model_fields", {})
        )
        assert {name for name, count in declared.items() if count > 1} <= MEAN_DIFFERENT_THINGS


# Each in algorithms of two kinds, with another meaning or other values.
MEAN_DIFFERENT_THINGS = {
    *("exploration", "parameter_noise", "mixer", "model"),
    *("train_batch_size", "learner_queue_size"),
    *("num_sgd_iter", "clip_param", "kl_coeff", "kl_target"),
    *("num_atoms", "v_max"),  # FlashSAC has at least two atoms, on both sides of 0
    "policy_delay",  # of target networks too in TD3, of the temperature in SAC
}


def test_a_class_that_is_built_at_once_has_its_defaults():
    class Built(PPOConfig):
        model_config = ConfigDict(defer_build=False)
        defaults = {"lr": 0.5}

    assert Built().lr == 0.5


def test_a_mistake_in_a_class_of_ones_own_is_an_error_where_it_is_defined():
    with pytest.raises(PydanticUserError, match=r"Mistaken(.|\n)*_checked"):

        class Mistaken(PPOConfig):
            @field_validator("nope")
            @classmethod
            def _checked(cls, value: Any) -> Any:
                return value
