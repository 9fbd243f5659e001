"""The sizes of models are known before they are built, and bounded where a file describes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import RollaxError
from rollax.algorithms.registry import get_trainer_class
from rollax.errors import PolicyError
from rollax.policy.model_size import check_model_size, models_as_large_as

SPACES = (
    (spaces.Box(-1, 1, (3,)), spaces.Discrete(3)),
    (spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Box(-1, 1, (2,))}), spaces.Box(-1, 1, (2,))),
    (spaces.Box(0, 255, (24, 24, 1), np.uint8), spaces.MultiDiscrete([2, 3])),
)
CONFIGS: list[dict[str, Any]] = [{}, {"model": {"use_lstm": True}}, {"noisy": True}]


@pytest.mark.parametrize("name", ["PPO", "DQN", "Rainbow", "SAC", "TD3", "IQL", "CQL", "MARWIL", "ES", "ARS"])
def test_shapes_of_weights_are_known_without_them(name):
    made = 0
    for of_policy, config in itertools.product(SPACES, CONFIGS):
        try:
            policy: Any = get_trainer_class(name).policy_class(*of_policy, config)
        except RollaxError:  # not for these spaces, or without this key
            continue
        assert policy._weight_shapes() == {key: array.shape for key, array in policy.get_weights().items()}
        made += 1
    assert made


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
