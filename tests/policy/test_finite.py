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

    @pytest.mark.short(every=3)
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
    def test_terms_of_the_loss_are_named(self):
        policy = make()
        batch = experience(policy, 8)
        batch["value_targets"][:] = np.inf
        with pytest.raises(NonFiniteError, match=r"the loss \((vf_explained_var, )?vf_loss\)"):
            policy.learn_on_batch(batch)
