"""Numbers that are not finite, in acting and in learning."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rollax.errors import NonFiniteError
from tests.policy.small_ppo import CHOICES, SEEN, experience, make, seen


class TestNotFinite:
    def with_nan(self, policy):
        weights = policy.get_weights()
        weights["policy_head.bias"][:] = np.nan
        policy.set_weights(weights)

    @pytest.mark.parametrize("explore", [True, False])
    @pytest.mark.parametrize("action_space", [CHOICES, SEEN, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
    def test_nan_logits_are_refused_in_acting(self, action_space, explore):
        policy = make(action_space=action_space)
        policy.name = "left"
        self.with_nan(policy)
        with pytest.raises(NonFiniteError, match=r"'left', row 0 of 3, at timestep 0(.|\n)*NaN in the weights"):
            policy.compute_actions(seen(3), explore=explore)

    def test_the_row_is_named(self):
        obs = seen(3)
        obs[1, 2] = np.nan
        with pytest.raises(NonFiniteError, match="row 1 of 3"):
            make().compute_actions(obs)

    @pytest.mark.long
    def test_a_bad_batch_changes_nothing(self):
        policy, twin = make(num_sgd_iter=1), make(num_sgd_iter=1)
        policy.name = "left"
        good = experience(policy, 8)
        twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
        for one in (policy, twin):
            one.learn_on_batch(good)
        for column in ("obs", "advantages", "value_targets"):
            bad = good.copy()
            bad[column][3] = np.nan
            before = policy.get_weights()
            with pytest.raises(NonFiniteError, match="not finite") as error:
                policy.learn_on_batch(bad)
            assert "policy 'left', gradient step 1: the loss (" in str(error.value)
            assert f"columns ['{column}']" in str(error.value)
            assert "lower lr" in str(error.value)
            for name, value in policy.get_weights().items():
                np.testing.assert_array_equal(value, before[name])
        assert policy.learner.num_updates == 1
        # The same as without the bad batch, except for the shuffles that it drew.
        twin.learning_rng.bit_generator.state = policy.learning_rng.bit_generator.state
        for one in (policy, twin):
            one.compute_actions(seen(5))
            one.learn_on_batch(good)
        for name, value in policy.get_weights().items():
            np.testing.assert_array_equal(value, twin.get_weights()[name])

    @pytest.mark.long
    def test_terms_of_the_loss_are_named(self):
        policy = make()
        batch = experience(policy, 8)
        batch["value_targets"][:] = np.inf
        with pytest.raises(NonFiniteError, match=r"the loss \((vf_explained_var, )?vf_loss\)"):
            policy.learn_on_batch(batch)

    def test_nan_weights_are_detected_in_learning(self):
        policy = make()
        batch = experience(policy, 8)
        self.with_nan(policy)
        with pytest.raises(NonFiniteError, match="gradient step 0"):
            policy.learn_on_batch(batch)
