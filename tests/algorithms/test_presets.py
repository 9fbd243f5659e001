"""The defaults of other libraries, as presets."""

import pytest
from gymnasium import spaces

from rollax import ConfigError, PPOTrainer, preset
from rollax.algorithms.registry import get_trainer_class
from rollax.config import resolve_config
from rollax.config.presets import PRESETS

CONTINUOUS = ("APEX_DDPG", "CQL", "DDPG", "SAC", "TD3")
OF_RLLIB = list(PRESETS["rllib"])


def value(config, key):
    return getattr(config, "lambda_" if key == "lambda" else key)


@pytest.mark.parametrize("algorithm", OF_RLLIB)
def test_each_algorithm_takes_its_preset(algorithm):
    trainer_class, keys = get_trainer_class(algorithm), preset("rllib", algorithm)
    config = resolve_config(trainer_class.config_class, keys)
    action_space = spaces.Box(-1, 1, (2,)) if algorithm in CONTINUOUS else spaces.Discrete(3)
    policy = trainer_class.policy_class.make_policy(spaces.Box(-1, 1, (4,)), action_space, config)
    layers = keys.pop("model", {})
    assert {key: value(policy.config, key) for key in keys} == keys
    assert {key: getattr(policy.config.model, key) for key in layers} == layers
    assert not layers or any(array.shape == (256, 256) for array in policy.get_weights().values())


@pytest.mark.parametrize("algorithm", OF_RLLIB)
def test_a_preset_has_only_keys_that_differ(algorithm):
    default, keys = get_trainer_class(algorithm).config_class(), preset("rllib", algorithm)
    layers = keys.pop("model", {})
    assert keys or layers
    assert [key for key in keys if keys[key] == value(default, key)] == []
    assert [key for key in layers if layers[key] == getattr(default.model, key)] == []


def test_a_preset_is_a_dict_of_ones_own():
    keys = preset("RLlib", "ppo")
    keys["model"]["fcnet_hiddens"] = (8,)
    keys["lr"] = 1.0
    assert preset("rllib", "PPO") == {**keys, "lr": 5e-5, "model": {"fcnet_hiddens": (256, 256)}}
    with PPOTrainer("CartPole-v1", keys) as trainer:
        assert (trainer.config.lr, trainer.config.lambda_) == (1.0, 1.0)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="rllib"):
        preset("sb3", "PPO")
    with pytest.raises(ConfigError) as refused:
        preset("rllib", "QMIX")
    assert all(algorithm in str(refused.value) for algorithm in OF_RLLIB)
