"""Exported policies in onnxruntime act like the policies themselves."""

import numpy as np
import pytest
from gymnasium import spaces

import rollax
from tests.marks import long_except
from tests.models.test_low_logits import Low
from tests.serving.export.policies import check_without_memory, runner_of

VECTOR = spaces.Box(-2.0, 2.0, (3,), np.float32)
NESTED = spaces.Dict(
    {
        "position": spaces.Box(-1e3, 1e3, (3,), np.float64),
        "inner": spaces.Tuple([spaces.Discrete(4, start=2), spaces.MultiBinary(3)]),
        "kinds": spaces.MultiDiscrete([3, 2]),
    }
)
MASKED = spaces.Dict({"x": VECTOR, "action_mask": spaces.MultiBinary(5)})
IMAGE = spaces.Box(0, 255, (6, 7, 3), np.uint8)
EMBEDDINGS = spaces.Box(-1, 1, (4, 3), np.float32)
PARAMETRIC = spaces.Dict({"x": VECTOR, "avail_actions": EMBEDDINGS, "action_mask": spaces.MultiBinary(4)})
BOX = spaces.Box(np.array([-1.0, 0.0, -np.inf], np.float32), np.array([2.0, 10.0, np.inf], np.float32))
BOUNDED = spaces.Box(np.array([-3.0, 5.0], np.float32), np.array([1.0, 9.0], np.float32))
DOUBLE = spaces.Box(-5.0, 7.0, (2, 2), np.float64)
TWO, FILTER = spaces.MultiDiscrete([3, 2]), {"observation_filter": "MeanStdFilter"}
FLASH_SAC = {"model": {"fcnet_hiddens": (4,)}, "actor_hiddens": (4, 4)}
RAINBOW = {"hiddens": [6], "num_atoms": 5, "noisy": True}
RESIDUAL = {"fcnet_hiddens": (4, 4), "residual_blocks": True, "normalization": "layer", "normalize_observations": True}

CASES = {
    "PPO: nested observations, a filter, nested actions": (
        rollax.PPO,
        NESTED,
        spaces.Dict({"turn": BOX, "press": spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)])}),
        {"normalize_actions": True, **FILTER},
    ),
    "PPO: masks of several choices": (rollax.PPO, MASKED, spaces.MultiDiscrete([3, 2], start=[1, 5]), {}),
    "PPO: masks, and low outputs for the valid choices": (rollax.PPO, MASKED, TWO, {"model": {"custom_model": Low}}),
    "PPO: an image, scaled actions": (rollax.PPO, IMAGE, BOUNDED, {"normalize_actions": True}),
    "DQN: atoms, dueling, noise, parametric actions": (rollax.Rainbow, PARAMETRIC, spaces.Discrete(4), RAINBOW),
    "SAC: a filter, actions of doubles": (rollax.SAC, VECTOR, DOUBLE, {"normalize_actions": True, **FILTER}),
    "A2C": (rollax.A2C, VECTOR, spaces.Discrete(3), {}),
    "IMPALA": (rollax.IMPALA, IMAGE, spaces.Discrete(3), {"model": {"fcnet_activation": "elu"}}),
    "APPO": (rollax.APPO, VECTOR, spaces.MultiBinary([2, 2]), {"model": {"fcnet_activation": "gelu"}}),
    "PG": (rollax.PG, VECTOR, BOX, {"model": {"free_log_std": True, "fcnet_activation": "silu"}}),
    "DQN": (rollax.DQN, VECTOR, spaces.Discrete(3, start=4), {"model": {"fcnet_activation": "relu"}}),
    "PQN": (rollax.PQN, MASKED, spaces.Discrete(5), {}),
    "DQN of images": (rollax.DQN, IMAGE, spaces.Discrete(2), {}),
    "DQN without dueling": (rollax.DQN, MASKED, spaces.Discrete(5), {"dueling": False}),
    "SAC, discrete": (rollax.SAC, MASKED, spaces.Discrete(5), {}),
    "DDPG": (rollax.DDPG, VECTOR, BOUNDED, {"normalize_actions": True}),
    "TD3": (rollax.TD3, NESTED, BOUNDED, {"normalize_actions": True, **FILTER}),
    "TD7": (rollax.TD7, VECTOR, BOUNDED, {"model": {"fcnet_hiddens": (4,)}, "embedding_dim": 3}),
    "CrossQ": (rollax.CrossQ, VECTOR, BOUNDED, {"critic_model": {"normalization": "batch"}}),
    "TQC": (rollax.TQC, VECTOR, BOUNDED, {"num_quantiles": 4}),
    "FlashSAC": (rollax.FlashSAC, VECTOR, BOUNDED, FLASH_SAC),
    "FlashSAC of plain layers": (rollax.FlashSAC, VECTOR, BOUNDED, {**FLASH_SAC, "residual_blocks": False}),
    "SAC of residual blocks": (rollax.SAC, NESTED, BOUNDED, {"model": RESIDUAL}),
    "SAC, batch renormalization": (rollax.SAC, VECTOR, BOUNDED, {"model": {"normalization": "batch_renorm"}}),
    "PPO, batch normalization": (rollax.PPO, VECTOR, spaces.Discrete(3), {"model": {"normalization": "batch"}}),
    "PPO, state-dependent exploration": (rollax.PPO, NESTED, BOX, {"use_sde": True}),
    "SAC, state-dependent exploration": (rollax.SAC, VECTOR, BOUNDED, {"use_sde": True}),
    "PPO, bonuses": (rollax.PPO, NESTED, spaces.Discrete(3), {"exploration_bonus": "rnd"}),
    "PPO, not clipped": (rollax.PPO, VECTOR, BOX, {"clip_actions": False}),
    "PPO, parametric": (rollax.PPO, PARAMETRIC, spaces.Discrete(4), {}),
    "PPO, larger images": (rollax.PPO, spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(4), {}),
    "PPO, stacked frames": (rollax.PPO, spaces.Box(0, 255, (2, 16, 18, 1), np.uint8), spaces.Discrete(4), {}),
    "PPO, channels first": (rollax.PPO, spaces.Box(0, 1, (3, 34, 34), np.float32), spaces.Discrete(4), {}),
    "PPO, images and numbers": (
        rollax.PPO,
        spaces.Dict({"image": IMAGE, "x": VECTOR, "n": spaces.Discrete(3)}),
        spaces.MultiDiscrete([[2, 3], [4, 2]]),
        FILTER,
    ),
    "QMIX": (rollax.QMIX, spaces.Tuple([VECTOR] * 3), spaces.Tuple([spaces.Discrete(2)] * 3), {}),
}


SHORT = {
    "PPO: nested observations, a filter, nested actions",
    "PPO: masks of several choices",
    "PPO: masks, and low outputs for the valid choices",
    "PPO: an image, scaled actions",
    "SAC: a filter, actions of doubles",
}


@pytest.mark.parametrize("name", long_except(SHORT, list(CASES)))
def test_actions_are_equal(name):
    policy_class, observations, actions, config = CASES[name]
    check_without_memory(runner_of(policy_class, observations, actions, **config), stablehlo=name not in SHORT)
