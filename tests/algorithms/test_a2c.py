"""What A2C adds to A3C: one step on what all have sampled, in parts where the config says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import A2CConfig, A2CPolicy, A2CTrainer, SampleBatch
from rollax.errors import ConfigError
from tests.algorithms.envs import Corridor
from tests.algorithms.tables import Table, f32

TABLE: dict[str, Any] = {"model": {"custom_model": Table}, "seed": 0}


def test_a_batch_in_parts_gives_the_same_step():
    batch = SampleBatch(
        {
            "obs": np.arange(7) % 4,
            "actions": np.arange(7) % 2,
            "advantages": f32(1, -2, 3, -4, 5, -6, 7),
            "value_targets": f32(1, 2, 3, 4, 5, 6, 7),
        }
    )
    whole, parts = (
        A2CPolicy(spaces.Discrete(4), spaces.Discrete(2), {**TABLE, "microbatch_size": size}) for size in (None, 3)
    )
    gradients = whole.compute_gradients(batch)[0]
    for name, value in parts.compute_gradients(batch)[0].items():
        np.testing.assert_allclose(value, gradients[name], rtol=1e-5, atol=1e-7)
    expected, stats = whole.learn_on_batch(batch), parts.learn_on_batch(batch)
    assert stats.pop("vf_explained_var") != expected.pop("vf_explained_var")  # no mean over rows: that of each part
    assert stats == pytest.approx(expected, rel=1e-5)
    assert (whole.learner.num_updates, parts.learner.num_updates) == (1, 1)


def test_3_a_part_larger_than_the_batch():
    with pytest.raises(ConfigError, match=r"microbatch_size=300, train_batch_size=200"):
        A2CConfig(microbatch_size=300)


def test_one_gradient_step_an_iteration():
    config = {**TABLE, "num_envs_per_worker": 2, "train_batch_size": 12, "rollout_fragment_length": 3, "lr": 0.01}
    with A2CTrainer(env=Corridor, config=config) as trainer:
        result = trainer.train()
        policy = trainer.get_policy()
        assert isinstance(policy, A2CPolicy)
        assert policy.learner.num_updates == 1
        assert result["timesteps_total"] == 12
        keys = {"policy_loss", "vf_loss", "entropy", "vf_explained_var", "total_loss", "cur_lr"}
        assert set(result["info"]["learner"]["default_policy"]) == keys
        # Adam's first step is lr along the sign of the gradient, wherever there is one.
        assert np.abs(policy.get_weights()["values"][:3]) == pytest.approx(f32(0.01, 0.01, 0.01), rel=1e-3)
        assert policy.get_weights()["values"][3] == 0  # no decision is made in state 3
