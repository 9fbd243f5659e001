"""MinAtar's Breakout in JAX; only where gymnax is installed, which excludes the newest Gymnasium."""

from __future__ import annotations

from typing import Any

import pytest

from rollax import PQNTrainer

pytestmark = pytest.mark.learning

STEPS = 10_000_000
# Gallici et al. (2024), table of MinAtar.
BREAKOUT: dict[str, Any] = {
    "num_envs_per_worker": 128,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 2,
    "lr_schedule": [[0, 5e-4], [STEPS, 0.0]],
    "epsilon_timesteps": STEPS // 10,
    "lambda": 0.65,
    "model": {
        "conv_filters": [[16, 3, 1]],
        "conv_dense": 128,
        "normalization": "layer",
        "normalize_before_activation": True,
    },
}


def test_pqn_minatar_breakout(reaches):
    pytest.importorskip("gymnax")
    reaches(PQNTrainer, "jax:gymnax/Breakout-MinAtar", 60, STEPS, BREAKOUT)
