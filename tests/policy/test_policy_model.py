"""Sizes of models and batches: refused beyond main memory, and known before anything is allocated."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from examples.torch_ppo import TorchPPO
from examples.torch_sac import TorchSAC
from rollax import SAC
from rollax.algorithms.ddpg import DDPGConfig
from rollax.algorithms.dqn import DQN, DQNConfig
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.algorithms.qmix import QMIXConfig
from rollax.core import memory
from rollax.errors import ConfigError, PolicyError
from rollax.policy import size_checks
from rollax.policy.size_checks import check_model_size, models_as_large_as
from rollax.search.ars import ARS
from tests.env.refused import refused

BOX, TWO = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
VAST = 10**15


@pytest.mark.parametrize(
    ("observations", "actions", "config", "message"),
    [
        (BOX, spaces.Discrete(VAST), {}, f"A layer of 64 inputs and {VAST:,} outputs"),
        (spaces.Discrete(VAST), TWO, {}, f"A layer of {VAST:,} inputs and 64 outputs"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(VAST)])}), TWO, {}, f"A layer of {VAST:,} inputs"),
        (BOX, TWO, {"model": {"fcnet_hiddens": [8, 10**7, 10**7]}}, "A layer of 10,000,000 inputs"),
        (BOX, TWO, {"model": {"use_lstm": True, "lstm_cell_size": 10**7}}, "A layer of"),
        (BOX, TWO, {"train_batch_size": 10**15}, "'train_batch_size'"),
        (BOX, TWO, {"rollout_fragment_length": 10**15}, "'rollout_fragment_length' and 'num_envs_per_worker'"),
        (BOX, TWO, {"num_sgd_iter": 10**15}, "'num_sgd_iter' and 'train_batch_size'"),
    ],
)
def test_is_refused(observations, actions, config, message):
    with pytest.raises(ConfigError, match="needs more memory than this machine has") as error:
        PPO.make_policy(observations, actions, config)
    assert message in str(error.value)


def test_the_limit_is_the_available_memory(monkeypatch):
    # The largest layer has 64 × 1000 weights of 4 bytes, four times. Images are convolved, so that they count for no
    # layer, but each of 32 rows has their 2000 bytes and 16 more. A fragment of 4 such rows is smaller.
    image = spaces.Box(0, 255, (10, 20, 10), np.uint8)
    config = DQNConfig(model={"fcnet_hiddens": (64,)}, num_atoms=10)  # pyright: ignore[reportArgumentType]
    layer, batch = 64 * 1000 * 4 * 4, 32 * 2016
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: layer)
    size_checks.check_sizes(BOX, spaces.Discrete(100), config, "")
    with pytest.raises(ConfigError, match="A layer of 64 inputs and 1,010 outputs"):
        size_checks.check_sizes(BOX, spaces.Discrete(101), config, "")
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: batch)
    size_checks.check_sizes(image, TWO, config, "")
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: batch - 1)
    refused(ConfigError, size_checks.check_sizes, image, TWO, config, "", says="A batch of 32 rows")


def test_sizes_are_checked_before_the_model_is_made(monkeypatch):
    monkeypatch.setattr(DQN, "make_exploration", lambda self: pytest.fail("too late"))
    refused(ConfigError, DQN.make_policy, BOX, spaces.Discrete(VAST), says="A layer of")


@pytest.mark.parametrize("key", ["seed", "train_batch_size", "num_sgd_iter", "model.max_seq_len"])
def test_integers_have_64_bits(key):
    part, _, name = key.rpartition(".")
    with pytest.raises(ConfigError, match=f"config key '{key}'(.|\\n)*an integer of 64 bits"):
        PPOConfig(**({part: {name: 2**63}} if part else {name: 2**63}))
    assert PPOConfig(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize(
    ("config_class", "config"),
    [
        *((PPOConfig, {"model": {"conv_filters": sizes}}) for sizes in ([[2**31, 3, 1]], [[8, [3, 2**31], 1]])),
        *((PPOConfig, {"model": {name: 2**31}}) for name in ("conv_dense", "lstm_cell_size")),
        (PPOConfig, {"model": {"fcnet_hiddens": [8, 10**400]}}),
        *((DQNConfig, config) for config in ({"hiddens": [2**31]}, {"num_atoms": 2**17})),
        *((QMIXConfig, config) for config in ({"mixing_embed_dim": 2**31}, {"hypernet_hiddens": [2**31]})),
        (DDPGConfig, {"policy_delay": 2**31}),
    ],
    ids=str,
)
def test_sizes_whose_products_overflow_are_refused(config_class, config):
    refused(ConfigError, config_class, says="out of range", **config)


def test_numbers_of_processes_and_environments_are_limited():
    for config in ({"num_workers": 2**15}, {"num_envs_per_worker": 2**20 + 1}):
        refused(ConfigError, PPOConfig, says="out of range", **config)


DICT = spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(-1, 1, (2,))})
IMAGE = spaces.Box(0, 255, (24, 24, 1), np.uint8)
POLICIES: list[Any] = [
    (PPO, DICT, spaces.MultiDiscrete([2, 3]), {"model": {"use_lstm": True}}),
    (PPO, BOX, BOX, {"model": {"free_log_std": True}}),
    (DQN, IMAGE, spaces.Discrete(3), {"noisy": True, "num_atoms": 5}),
    (SAC, DICT, BOX, {}),
    (ARS, BOX, spaces.Discrete(3), {}),
    (TorchPPO, DICT, spaces.Discrete(3), {"model": {"use_lstm": True}}),
    (TorchSAC, DICT, BOX, {}),
]


@pytest.mark.short("PPO-observation_space0-action_space0-config0")
@pytest.mark.parametrize(("policy_class", "observation_space", "action_space", "config"), POLICIES)
def test_shapes_of_weights_are_known_without_them(policy_class, observation_space, action_space, config):
    policy = policy_class.make_policy(observation_space, action_space, config)
    assert policy._weight_shapes() == {key: array.shape for key, array in policy.get_weights().items()}


def test_models_of_a_file_are_bounded_together():
    shapes = {"x": (1 << 12, 1 << 11)}  # 32 MiB
    weights = {"x": np.zeros((1 << 20), np.float32)}  # 4 MiB
    check_model_size(lambda: pytest.fail("asked without a bound"), "here")
    with models_as_large_as([weights, {}]):
        for _ in range(2):
            check_model_size(lambda: shapes, "here")
        with pytest.raises(PolicyError, match="larger"):
            check_model_size(lambda: shapes, "here")
    with models_as_large_as([weights] * 10):
        for _ in range(3):
            check_model_size(lambda: shapes, "here")
