"""The equations of TQC against numbers derived by hand, and its learning run."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from examples.tqc import CONFIG, TQC, TQCConfig, TQCTrainer
from rollax import ConfigError
from tests.algorithms.tables import f32, two_rows

BOX = spaces.Box(-1, 1, (1,), np.float32)
OPTIONS = {"model": {"fcnet_hiddens": ()}, "train_batch_size": 2, "initial_alpha": 0.5, "seed": 0}
THREE_OF_FOUR = {"num_critics": 2, "num_quantiles": 4, "dropped_quantiles": 1}


class Middle(np.random.Generator):
    """A random generator that always returns the median."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def random(self, shape, dtype):
        return np.full(shape, 0.5, dtype)


class TestUpdate:
    """Linear critics that are constant: 1, 2, 3, 4 and 5, 0, 7, 2; targets 10 times as large; α = ½.

    All weights of the actor are 0 and the noise is the median: the action is 0, with log π = -½ log 2π = -0.918939.
    """

    def results(self):
        policy = TQC.make_policy(spaces.Discrete(3), BOX, {**OPTIONS, **THREE_OF_FOUR})
        weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
        weights["log_alpha"] = policy.get_weights()["log_alpha"]
        quantiles = f32(1, 2, 3, 4, 5, 0, 7, 2).reshape(2, 4)
        weights["critics.members.head.bias"] = 10 * quantiles
        policy.set_weights(weights)
        targets = {name: jnp.array(value) for name, value in policy.targets.items()}
        policy.set_weights({**weights, "critics.members.head.bias": quantiles})
        policy.learner.set_targets(targets)
        policy.learning_rng = Middle()
        return policy.compute_gradients(two_rows(actions=f32(0.2, -0.4)[:, None]))

    def test_targets_leave_out_the_largest_quantiles_and_the_actor_none(self):
        # The targets' mean of 0, 10, 20, 20, 30, 40, without 50 and 70, is 20.
        # Row 0: y = 1 + ½ (20 + ½ 0.918939) = 11.229735; row 1 is terminated: y = 2. The mean of all quantiles is 3.
        _, stats = self.results()
        np.testing.assert_allclose(stats["mean_target"], (11.229735 + 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_q"], 3, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [8.229735, 1], rtol=1e-5)
        np.testing.assert_allclose(stats["actor_loss"], 0.5 * -0.918939 - 3, rtol=1e-5)

    def test_the_temperature_is_that_of_sac(self):
        # -log α mean(log π + H̄), H̄ = -1
        gradients, stats = self.results()
        np.testing.assert_allclose(gradients["log_alpha"], 1.918939, rtol=1e-5)
        np.testing.assert_allclose(stats["alpha_loss"], np.log(0.5) * 1.918939, rtol=1e-5)


def test_the_key_of_two_critics_is_refused():
    with pytest.raises(ConfigError, match="twin_q"):
        TQCConfig(twin_q=False)


@pytest.mark.learning
def test_own_tqc_pendulum(reaches):
    reaches(TQCTrainer, "Pendulum-v1", -200, 20_000, CONFIG)
