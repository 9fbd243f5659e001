"""Action masks of group members: acting, targets, and absent members."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import EnvError, SpaceError
from rollax.algorithms.qmix import QMIX
from tests.algorithms.group_tables import SMALL, TABLE, TARGET_TABLE, TWO, rows, with_table
from tests.env.refused import refused

MEMBER = {"where": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2), "state": spaces.Discrete(2)}
MASKED = spaces.Tuple([spaces.Dict(MEMBER)] * 2)


def masked(lefts, rights, masks):
    """Observations of both, with masks [B, 2 members, 2 actions]."""
    masks = np.array(masks, np.int8)
    return tuple(
        {"where": np.array(where), "action_mask": masks[:, i], "state": np.ones(len(where), int)}
        for i, where in enumerate((lefts, rights))
    )


class TestMasks:
    config = {**SMALL, "mixer": "vdn", "double_q": False, "lr": 0.0}

    def test_each_member_obeys_its_mask(self):
        policy = QMIX.make_policy(MASKED, TWO, {**self.config, "initial_epsilon": 1.0})
        obs = masked([0] * 300, [1] * 300, [[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 1], [1, 1]]] * 100)
        for explore in (True, False):
            (lefts, rights), _, _ = policy.compute_actions(obs, explore=explore)
            assert (lefts[::3] == 0).all()
            assert (rights[::3] == 1).all()
            assert (lefts[1::3] == 1).all()
            assert (rights[1::3] == 0).all()
        assert set(lefts[2::3]) | set(rights[2::3]) <= {0, 1}

    def test_low_values_of_valid_actions_are_above_those_of_invalid_ones(self):
        low = np.array(TABLE, np.float32)
        low[...] = -3e38
        policy = with_table(QMIX.make_policy(MASKED, TWO, {**self.config, "initial_epsilon": 0.5}), low, low)
        obs = masked([0] * 64, [1] * 64, [[[1, 0], [0, 1]], [[0, 1], [1, 0]]] * 32)
        for explore in (True, False):
            (lefts, rights), _, _ = policy.compute_actions(obs, explore=explore)
            assert lefts.tolist() == [0, 1] * 32
            assert rights.tolist() == [1, 0] * 32

    @pytest.mark.long
    def test_targets_exclude_invalid_actions(self):
        policy = with_table(QMIX.make_policy(MASKED, TWO, self.config), TABLE, TARGET_TABLE)
        obs = masked([0, 2], [1, 0], np.ones((2, 2, 2)))
        # At state 1 `left` has only action 0, worth 2 and not 8: y = 1 + (2 + 7) / 2 = 5.5, Q_tot = 4.5
        new_obs = masked([1, 0], [2, 0], [[[1, 0], [1, 1]], [[1, 1], [1, 1]]])
        stats = policy.learn_on_batch(rows(obs=obs, new_obs=new_obs))
        np.testing.assert_allclose(stats["td_error"], [1.0, 2.0], rtol=1e-5)

    @pytest.mark.parametrize(("mixer", "errors"), [("vdn", [4.0, 2.0]), (None, [2.5, 2.0])])
    def test_a_recorded_action_may_be_one_that_the_mask_forbids(self, mixer, errors):
        # `left` took action 1 in row 0, and its mask has only action 0: Q(0, 1) = 0.5 and Q(1, 0) = 4, against
        # 1 + 8 / 2 and 1 + 7 / 2, or as sums 4.5 against 1 + (8 + 7) / 2. Row 1: 0 against 2.
        policy = with_table(QMIX.make_policy(MASKED, TWO, {**self.config, "mixer": mixer}), TABLE, TARGET_TABLE)
        obs = masked([0, 2], [1, 0], [[[1, 0], [1, 1]], [[1, 1], [1, 1]]])
        new_obs = masked([1, 0], [2, 0], np.ones((2, 2, 2)))
        stats = policy.learn_on_batch(rows(obs=obs, new_obs=new_obs))
        np.testing.assert_allclose(stats["td_error"], errors, rtol=1e-5)

    @pytest.mark.long
    @pytest.mark.parametrize(("mixer", "errors"), [("vdn", [4.5, 2.0]), (None, [2.25, 1.0])])
    def test_absent_members_count_nothing(self, mixer, errors):
        # `right` is absent. Row 0: Q(0, 1) = 0.5 against 1 + 8 / 2 = 5. Row 1: 0 against 2.
        policy = with_table(QMIX.make_policy(MASKED, TWO, {**self.config, "mixer": mixer}), TABLE, TARGET_TABLE)
        gone = [[1, 1], [0, 0]]
        obs, new_obs = masked([0, 2], [0, 0], [gone, gone]), masked([1, 0], [0, 0], [gone, gone])
        stats = policy.learn_on_batch(rows(obs=obs, new_obs=new_obs))
        np.testing.assert_allclose(stats["td_error"], errors, rtol=1e-5)

    def test_a_mask_of_zeros_is_refused(self):
        policy = QMIX.make_policy(MASKED, TWO, self.config)
        obs = masked([1, 1], [2, 0], [[[1, 1], [1, 0]], [[1, 0], [0, 0]]])
        refused(EnvError, policy.compute_actions, obs, says="row 1 of 2, member 1 of 2...at least one 1")

    def test_absent_members_have_masks_of_zeros(self):
        policy = QMIX.make_policy(MASKED, TWO, self.config)
        obs = masked([1], [0], [[[0, 1], [0, 0]]])
        obs[1]["state"][:] = 0
        assert policy.compute_actions(obs, explore=False)[0][0].tolist() == [1]

    def test_masks_one_level_down_are_refused(self):
        observed = spaces.Tuple([spaces.Dict({"inner": MASKED[0]})] * 2)
        message = (
            r"not at the top level(.|\n)*observation space of a member, key 'inner', key 'action_mask'(.|\n)*"
            r"fix: +move the mask"
        )
        with pytest.raises(SpaceError, match=message):
            QMIX.make_policy(observed, TWO, self.config)

    def test_an_acting_group_requires_a_present_member(self):
        policy = QMIX.make_policy(MASKED, TWO, self.config)
        obs = masked([0], [0], [[[0, 0], [0, 0]]])
        for member in obs:
            member["state"][:] = 0
        refused(EnvError, policy.compute_actions, obs, says="member 0")

    def test_an_acting_group_with_a_filter_requires_a_present_member(self):
        policy = QMIX.make_policy(MASKED, TWO, {**self.config, "observation_filter": "MeanStdFilter"})
        obs = masked([1], [2], [[[1, 0], [0, 0]]])
        assert policy.compute_actions(obs, explore=False)[0][0].tolist() == [0]
        refused(EnvError, policy.compute_actions, masked([1], [2], [[[0, 0], [0, 0]]]), says="member 0")
