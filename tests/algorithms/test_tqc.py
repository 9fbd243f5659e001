"""TQC: its targets, losses and config against numbers derived by hand. Tests of SAC cover the rest."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SpaceError
from rollax.algorithms.tqc import TQC, TQCConfig
from tests.algorithms.tables import BOX, LINE, f32, set_tables, two_rows
from tests.algorithms.test_sac import Middle
from tests.env.refused import raised, refused

SMALL = {"model": {"fcnet_hiddens": ()}, "train_batch_size": 2, "initial_alpha": 0.5, "seed": 0, "num_quantiles": 4}
SMALL |= {"top_quantiles_to_drop_per_net": 1}
BIAS = "critics.members.head.bias"


class TestUpdate:
    """Linear critics that are constant: 1, 2, 3, 4 and 5, 0, 7, 2; targets 10 times as large; α = ½.

    All weights of the actor are 0 and the noise is the median: the action is 0, with log π = -½ log 2π = -0.918939.
    """

    quantiles = f32(1, 2, 3, 4, 5, 0, 7, 2).reshape(2, 4)

    def results(self, **options):
        policy = TQC.make_policy(LINE, BOX, {**SMALL, **options})
        weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
        weights["log_alpha"] = policy.get_weights()["log_alpha"]
        set_tables(policy, {**weights, BIAS: self.quantiles}, {**weights, BIAS: 10 * self.quantiles})
        policy.learning_rng = Middle()
        return policy.compute_gradients(two_rows())

    def test_targets_leave_out_the_largest_quantiles_and_the_actor_none(self):
        # The targets' mean of 0, 10, 20, 20, 30, 40, without 50 and 70, is 20.
        # Row 0: y = 1 + ½ (20 + ½ 0.918939) = 11.229735; row 1 is terminated: y = 2. The mean of all quantiles is 3.
        _, stats = self.results()
        np.testing.assert_allclose(stats["mean_target"], (11.229735 + 2) / 2, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_q"], 3, rtol=1e-5)
        np.testing.assert_allclose(stats["td_error"], [8.229735, 1], rtol=1e-5)
        np.testing.assert_allclose(stats["actor_loss"], 0.5 * -0.918939 - 3, rtol=1e-5)

    def test_the_critics(self):
        # Row 1: all targets are 2. By θ_m the gradient is -|τ_m - 1{2 < θ_m}| clip(2 - θ_m, -1, 1), τ = 1/8, ..., 7/8:
        #   θ = 1, 2, 3, 4:  -1/8, 0, 3/8, 1/8;  θ = 5, 0, 7, 2:  7/8, -3/8, 3/8, 0.
        # Row 0: y = 1 + ½ (z + ½ 0.918939) for z = 0, 10, 20, 20, 30, 40: 1.229735, 6.229735 and four above 11. Six
        # times the gradient is the sum of 1 - τ for each y far below θ, and -τ for each y far above it. Near ones, by
        # less than 1, are 1.229735 for θ = 1 and 2, with the factors 0.229735 and 0.770265, and 6.229735 for θ = 7.
        # A mean over 2 critics, 4 quantiles and 2 rows: divided by 16.
        gradients, _ = self.results()
        row = [-(0.229735 + 5) / 8, (5 * 0.770265 - 15) / 8, 3 / 8 - 25 / 8, 1 / 8 - 35 / 8]
        other = [7 / 8 - 5 / 8, -18 / 8, 3 / 8 * (1 + 0.770265) - 20 / 8, 1 / 8 * 0.770265 - 35 / 8]
        terminated = np.array([[-1 / 8, 0, 3 / 8, 1 / 8], [7 / 8, -3 / 8, 3 / 8, 0]])
        np.testing.assert_allclose(gradients[BIAS], (np.array([row, other]) / 6 + terminated) / 16, rtol=1e-4)

    @pytest.mark.long
    def test_a_subset_of_the_critics_in_targets(self):
        # The median draws critic 0 only: without 40 the mean is 20, and y = 11.229735 again; without a drop it is 25.
        for dropped, target in ((1, 11.229735), (0, 13.729735)):
            _, stats = self.results(target_critics=1, top_quantiles_to_drop_per_net=dropped)
            np.testing.assert_allclose(stats["mean_target"], (target + 2) / 2, rtol=1e-5)

    def test_an_actor_of_the_lowest_mean(self):
        _, stats = self.results(actor_q="min")
        np.testing.assert_allclose(stats["actor_loss"], 0.5 * -0.918939 - 2.5, rtol=1e-5)


def test_settings_and_spaces():
    raised(ConfigError, TQCConfig, says="twin_q", twin_q=False)
    raised(ConfigError, TQCConfig, says="top_quantiles_to_drop_per_net", num_quantiles=2)
    refused(SpaceError, TQC.make_policy, LINE, spaces.Discrete(2), SMALL, says="not continuous...TQC")
