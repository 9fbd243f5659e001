"""The sizes of models are known before they are built, and bounded where a file describes them."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import DQN, PPO, SAC
from rollax.errors import PolicyError
from rollax.policy.size_checks import check_model_size, models_as_large_as
from rollax.search.ars import ARS

BOX, DICT = spaces.Box(-1, 1, (3,)), spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(-1, 1, (2,))})
IMAGE = spaces.Box(0, 255, (24, 24, 1), np.uint8)
POLICIES: list[Any] = [
    (PPO, DICT, spaces.MultiDiscrete([2, 3]), {"model": {"use_lstm": True}}),
    (PPO, BOX, BOX, {"model": {"free_log_std": True}}),
    (DQN, IMAGE, spaces.Discrete(3), {"noisy": True, "num_atoms": 5}),
    (SAC, DICT, BOX, {}),
    (ARS, BOX, spaces.Discrete(3), {}),
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
