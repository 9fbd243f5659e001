import numpy as np
import pytest

from rollax.batch import Fragment
from rollax.errors import BatchError, ShapeError
from rollax.ops.advantages import discounted_returns, generalized_advantages, running_sums, standardized

THREE_SEGMENTS = [3, 1, 2]


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def segments(lengths, rewards, values=None, terminated=()) -> Fragment:
    """A fragment whose segments have these lengths; those at the positions `terminated` terminate."""
    ends = np.cumsum(lengths, dtype=int) - 1
    terminateds = np.zeros(sum(lengths), bool)
    terminateds[ends[np.array([*terminated], int)]] = True
    columns = {"rewards": rewards, "terminateds": terminateds}
    return Fragment(columns if values is None else {**columns, "vf_preds": values}, ends, {})


def random_segments(lengths: list[int]) -> tuple[Fragment, np.ndarray]:
    """Segments of which every other one terminates, and their next values."""
    rng = np.random.default_rng(len(lengths))
    rewards, values = rng.normal(size=(2, sum(lengths))).astype(np.float32)
    next_values = rng.normal(size=len(lengths)).astype(np.float32)
    return segments(lengths, rewards, values, range(1, len(lengths), 2)), next_values


def slow_advantages(fragment, next_values, gamma, lambda_):
    """The definition, row by row from the end, in float64."""
    rewards, values = fragment["rewards"].astype(np.float64), fragment["vf_preds"].astype(np.float64)
    terminateds, last = fragment["terminateds"], fragment.last
    advantages = np.zeros(len(rewards))
    segment, following_value, following_advantage = int(last.sum()), 0.0, 0.0
    for row in reversed(range(len(rewards))):
        if last[row]:
            segment -= 1
            following_value = 0.0 if terminateds[row] else float(next_values[segment])
            following_advantage = 0.0
        delta = rewards[row] + gamma * following_value - values[row]
        following_advantage = advantages[row] = delta + gamma * lambda_ * following_advantage
        following_value = values[row]
    return advantages


class TestGeneralizedAdvantages:
    # γ = 0.5, λ = 0.5, one segment of two rows, rewards 1 2, values 10 20, next value 30.
    #   δ_0 = 1 + 0.5 · 20 - 10 = 1
    #   truncated or cut:  δ_1 = 2 + 0.5 · 30 - 20 = -3    A = 1 + 0.25 · -3 = 0.25, -3      A + V = 10.25, 17
    #   terminated:        δ_1 = 2 - 20 = -18              A = 1 + 0.25 · -18 = -3.5, -18    A + V = 6.5, 2
    @pytest.mark.parametrize(
        ("terminated", "advantages", "targets"), [(False, (0.25, -3), (10.25, 17)), (True, (-3.5, -18), (6.5, 2))]
    )
    def test_by_hand(self, terminated, advantages, targets):
        fragment = segments([2], f32(1, 2), f32(10, 20), [0] if terminated else [])
        got = generalized_advantages(fragment, f32(30), gamma=0.5, lambda_=0.5)
        np.testing.assert_array_equal(got[0], f32(*advantages))
        np.testing.assert_array_equal(got[1], f32(*targets))
        assert got[0].dtype == got[1].dtype == np.float32

    def test_each_segment_uses_its_own_next_value(self):
        # γ = 0.1, λ = 1, values 0: the targets are returns, with the next value as the digit after the last reward.
        fragment = segments(THREE_SEGMENTS, f32(1, 2, 3, 4, 5, 6), np.zeros(6, np.float32), terminated=[1])
        advantages, targets = generalized_advantages(fragment, f32(7, 8, 9), gamma=0.1, lambda_=1.0)
        np.testing.assert_allclose(targets, f32(1.237, 2.37, 3.7, 4, 5.69, 6.9), rtol=1e-6)
        np.testing.assert_array_equal(advantages, targets)

    @pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
    @pytest.mark.parametrize("lengths", [[1000, 1, 3, 1, 1000, 64], [1], [1] * 7, [5, 4, 3, 2, 1], [1, 1000]])
    def test_equals_the_definition(self, lengths, lambda_):
        fragment, next_values = random_segments(lengths)
        advantages, targets = generalized_advantages(fragment, next_values, gamma=0.99, lambda_=lambda_)
        expected = slow_advantages(fragment, next_values, 0.99, lambda_)
        np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(targets, expected + fragment["vf_preds"], rtol=1e-6, atol=1e-6)

    def test_cutting_a_fragment_changes_nothing_with_lambda_0(self):
        fragment, next_values = random_segments([10])
        whole, _ = generalized_advantages(fragment, next_values, gamma=0.9, lambda_=0.0)
        cut = segments([4, 6], fragment["rewards"], fragment["vf_preds"])
        cut_after_4 = np.array([fragment["vf_preds"][4], next_values[0]])
        parts, _ = generalized_advantages(cut, cut_after_4, gamma=0.9, lambda_=0.0)
        np.testing.assert_array_equal(parts, whole)

    def test_next_value_of_a_terminated_segment_is_not_read(self):
        fragment = segments([1], f32(1), f32(2), terminated=[0])
        advantages, targets = generalized_advantages(fragment, f32(np.nan), gamma=0.9, lambda_=0.9)
        assert (advantages[0], targets[0]) == (-1, 1)

    def test_arguments_are_not_changed(self):
        fragment, next_values = random_segments([3, 2])
        before, next_values_before = fragment.copy(), next_values.copy()
        generalized_advantages(fragment, next_values, gamma=0.9, lambda_=0.9)
        np.testing.assert_equal(fragment.to_dict(), before.to_dict())
        np.testing.assert_array_equal(next_values, next_values_before)

    def test_wrong_columns(self):
        fragment, next_values = random_segments([3, 2])
        with pytest.raises(ShapeError, match=r"next_values(.|\n)*\(1,\)\n.*\(2,\)"):
            generalized_advantages(fragment, next_values[1:], gamma=0.9, lambda_=0.9)
        fragment["terminateds"][1] = True
        with pytest.raises(BatchError, match=r"terminates inside a trajectory segment.\n.*row 1"):
            generalized_advantages(fragment, next_values, gamma=0.9, lambda_=0.9)


class TestValueHeads:
    """Two heads, of which the second does not end with episodes. Slot 0 has the segments 0 and 2, slot 1 segment 1."""

    def made(self, values):
        fragment = segments([3, 2, 1], f32(*[np.nan] * 6), values, terminated=[0])
        fragment["slot"] = np.array([0, 0, 0, 1, 1, 0])
        rewards = np.stack([f32(1, 2, 3, 4, 5, 6), f32(1, 2, 3, 4, 5, 6)], axis=1)
        return fragment, rewards, np.stack([f32(7, 8, 9), f32(7, 8, 9)], axis=1)

    def test_returns_by_hand(self):
        # γ = 0.1 and λ = 1 in both heads, values 0: the targets are returns. Episodic: 1 2 3 and 4 5 then 8 and 6 then
        # 9. Otherwise slot 0 has 1 2 3 6 and then 9.
        fragment, rewards, next_values = self.made(np.zeros((6, 2), np.float32))
        settings = {"gamma": 0.1, "lambda_": 1.0, "rewards": rewards, "episodic": (True, False)}
        advantages, targets = generalized_advantages(fragment, next_values, **settings)
        np.testing.assert_allclose(targets[:, 0], f32(1.23, 2.3, 3, 4.58, 5.8, 6.9), rtol=1e-6)
        np.testing.assert_allclose(targets[:, 1], f32(1.2369, 2.369, 3.69, 4.58, 5.8, 6.9), rtol=1e-6)
        np.testing.assert_array_equal(advantages, targets)
        assert advantages.dtype == targets.dtype == np.float32

    def test_each_head_has_its_own_discount_and_lambda(self):
        # Head 0: γ = 0.5, λ = 0, values 10 20 30 | 40 50 | 60:  δ = r + ½ V' - V
        #   1 + 10 - 10,  2 + 15 - 20,  3 - 30 (terminated),  4 + 25 - 40,  5 + 4 - 50,  6 + 4.5 - 60
        # Head 1: γ = 1, λ = ½, values 1: δ = r in a slot, except before its end, where it is r + V' - 1; γλ = ½
        #   slot 0: δ = 1, 2, 3, 6 + 9 - 1 = 14:  A = 1 + ½ 7, 2 + ½ 10 = 7, 3 + ½ 14 = 10, 14
        #   slot 1: δ = 4, 5 + 8 - 1 = 12:  A = 4 + 6, 12
        values = np.stack([f32(10, 20, 30, 40, 50, 60), np.ones(6, np.float32)], axis=1)
        fragment, rewards, next_values = self.made(values)
        settings = {"gamma": (0.5, 1.0), "lambda_": (0.0, 0.5), "rewards": rewards, "episodic": (True, False)}
        advantages, targets = generalized_advantages(fragment, next_values, **settings)
        np.testing.assert_allclose(advantages[:, 0], f32(1, -3, -27, -11, -41, -49.5), rtol=1e-6)
        np.testing.assert_allclose(advantages[:, 1], f32(4.5, 7, 10, 10, 12, 14), rtol=1e-6)
        np.testing.assert_allclose(targets, advantages + values, rtol=1e-6)

    def test_one_head_that_does_not_end_with_episodes(self):
        fragment, rewards, next_values = self.made(np.zeros(6, np.float32))
        fragment["rewards"] = rewards[:, 0]
        _, targets = generalized_advantages(fragment, next_values[:, 0], gamma=0.1, lambda_=1.0, episodic=False)
        np.testing.assert_allclose(targets, f32(1.2369, 2.369, 3.69, 4.58, 5.8, 6.9), rtol=1e-6)

    @pytest.mark.parametrize(
        "wrong", [np.array(7.0, np.float32), f32(7), f32(7, 8), f32(7, 8, 9, 10), np.ones((3, 1), np.float32)]
    )
    @pytest.mark.parametrize("episodic", [True, False])
    def test_one_head_with_another_number_of_next_values_is_refused(self, episodic, wrong):
        fragment, rewards, _ = self.made(np.zeros(6, np.float32))
        with pytest.raises(ShapeError):
            generalized_advantages(fragment, wrong, gamma=0.1, lambda_=1.0, rewards=rewards[:, 0], episodic=episodic)

    def test_a_number_of_heads_that_differs_is_refused(self):
        fragment, rewards, next_values = self.made(np.zeros((6, 2), np.float32))
        for wrong in ({"rewards": rewards[:, 0]}, {"rewards": None}, {"next_values": next_values[:, :1]}):
            arguments = {"next_values": next_values, "rewards": rewards, **wrong}
            with pytest.raises(ShapeError):
                generalized_advantages(fragment, **arguments, gamma=0.9, lambda_=0.9)


def test_running_sums_by_hand():
    # γ = 0.1: 1, 2 + 0.1, 3 + 0.21 after nothing; 4 + 0.7 and 5 + 0.47 after 7.
    sums = running_sums(f32(1, 2, 3, 4, 5), f32(0, 7), gamma=0.1, ends=np.array([2, 4]))
    np.testing.assert_allclose(sums, [1, 2.1, 3.21, 4.7, 5.47], rtol=1e-7)


class TestDiscountedReturns:
    def test_bootstraps_where_nothing_terminated(self):
        fragment = segments(THREE_SEGMENTS, f32(1, 2, 3, 4, 5, 6), terminated=[1])
        returns = discounted_returns(fragment, f32(7, 8, 9), gamma=0.1)
        np.testing.assert_allclose(returns, f32(1.237, 2.37, 3.7, 4, 5.69, 6.9), rtol=1e-6)

    def test_without_a_value_function(self):
        returns = discounted_returns(segments(THREE_SEGMENTS, f32(1, 2, 3, 4, 5, 6)), None, gamma=0.1)
        np.testing.assert_allclose(returns, f32(1.23, 2.3, 3, 4, 5.6, 6), rtol=1e-6)

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 1000])
    def test_undiscounted_rewards_of_1_count_the_remaining_rows(self, length):
        fragment = segments([length, 1], np.ones(length + 1, np.float32))
        returns = discounted_returns(fragment, None, gamma=1.0)
        np.testing.assert_array_equal(returns, [*range(length, 0, -1), 1])
        assert returns.dtype == np.float32

    def test_accumulates_in_float64(self):
        # In float32, 2^24 + 1 + 1 is 2^24: each 1 is lost. Summed exactly, it is 2^24 + 2.
        assert discounted_returns(segments([3], f32(2**24, 1, 1)), None, gamma=1.0)[0] == 2**24 + 2

    def test_no_rows(self):
        assert discounted_returns(segments([], f32()), None, gamma=0.9).shape == (0,)


class TestEndlessEnv:
    """Reward 1 at every step, truncated after 10 steps: V = 1 / (1 - γ) = 10 with γ = 0.9."""

    @staticmethod
    def learned_value(truncation_is_termination: bool, lambda_: float) -> float:
        """The fixed point of V ← mean of the value targets that follow from V."""
        lengths = [10, 10, 3]
        ones, value = np.ones(sum(lengths), np.float32), 0.0
        for _ in range(400):
            terminated = range(len(lengths)) if truncation_is_termination else ()
            fragment = segments(lengths, ones, np.full(len(ones), value), terminated)
            _, targets = generalized_advantages(fragment, np.full(len(lengths), value), gamma=0.9, lambda_=lambda_)
            value = float(targets.mean())
        return value

    @pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
    def test_value(self, lambda_):
        assert self.learned_value(False, lambda_) == pytest.approx(10, rel=1e-4)

    @pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
    def test_value_is_wrong_when_truncation_is_treated_as_termination(self, lambda_):
        assert self.learned_value(True, lambda_) < 6


def test_standardized():
    # mean 2, deviation sqrt(2/3)
    np.testing.assert_allclose(standardized(np.float32([1, 2, 3])), np.array([-1, 0, 1]) / np.sqrt(2 / 3), rtol=1e-6)
    assert standardized(np.float32([1, 2])).dtype == np.float32
    # Float32 rounds the mean of these; dividing the rounding errors by their deviation would give large numbers.
    np.testing.assert_array_equal(standardized(np.full(1001, 0.1, np.float32)), 0)
    # Padding counts for neither the mean nor the deviation.
    real = np.array([True, False, True, True, False])
    padded = standardized(np.float32([1, 0, 2, 3, np.nan]), real)
    np.testing.assert_array_equal(padded[real], standardized(np.float32([1, 2, 3])))
    np.testing.assert_array_equal(padded[~real], 0)
