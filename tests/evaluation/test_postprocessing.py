import warnings

import numpy as np
import pytest

from rollax.errors import BatchError, ShapeError
from rollax.evaluation.postprocessing import discounted_returns, discounted_suffix_sums, generalized_advantages

NONE_TERMINATED = np.zeros(6, bool)
#           segment of 3 rows       1 row     2 rows
LAST = np.array([0, 0, 1, 1, 0, 1], bool)


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def ends(lengths: list[int]) -> np.ndarray:
    last = np.zeros(sum(lengths), bool)
    last[np.cumsum(lengths) - 1] = True
    return last


def slow_advantages(rewards, values, next_values, terminateds, last, gamma, lambda_):
    """The definition, row by row from the end, in float64."""
    rewards, values = rewards.astype(np.float64), values.astype(np.float64)
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


def rlax_advantages(*arguments):
    with warnings.catch_warnings():
        # What rlax stands on uses deprecated parts of JAX as it is imported.
        warnings.simplefilter("ignore")
        import rlax
    return rlax.truncated_generalized_advantage_estimation(*arguments)


class TestSuffixSums:
    def test_reads_as_digits(self):
        sums = discounted_suffix_sums(f32(1, 2, 3, 4, 5, 6), 0.1, LAST)
        np.testing.assert_allclose(sums, f32(1.23, 2.3, 3, 4, 5.6, 6), rtol=1e-6)
        assert sums.dtype == np.float32

    def test_decay_of_each_row(self):
        # 1 + 0.5 (2 + 10 · 3) = 17; the decay on a segment's last row says nothing, even when it is no number.
        decay = np.array([0.5, 10, np.nan, np.nan, 0.0, np.nan])
        np.testing.assert_allclose(discounted_suffix_sums(f32(1, 2, 3, 4, 5, 6), decay, LAST), f32(17, 32, 3, 4, 5, 6))

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 1000])
    def test_decay_1_counts_the_rows_left(self, length):
        sums = discounted_suffix_sums(np.ones(length + 1), 1.0, ends([length, 1]))
        np.testing.assert_array_equal(sums, [*range(length, 0, -1), 1])

    def test_accumulates_in_float64(self):
        # In float32, 2^24 + 1 + 1 is 2^24: each 1 is lost. Summed exactly, it is 2^24 + 2.
        np.testing.assert_array_equal(discounted_suffix_sums(f32(2**24, 1, 1), 1.0, ends([3]))[0], 2**24 + 2)

    def test_no_rows(self):
        assert discounted_suffix_sums(np.zeros(0), 0.9, np.zeros(0, bool)).shape == (0,)

    def test_wrong_columns(self):
        with pytest.raises(ShapeError, match=r"x\n.*\(5,\)\n.*\(6,\)"):
            discounted_suffix_sums(np.zeros(5), 0.9, LAST)
        with pytest.raises(BatchError, match="ends no trajectory segment"):
            discounted_suffix_sums(np.zeros(2), 0.9, np.array([True, False]))


class TestGeneralizedAdvantages:
    # γ = 0.5, λ = 0.5, one segment of two rows, rewards 1 2, values 10 20, the value after it 30.
    #   δ_0 = 1 + 0.5 · 20 - 10 = 1
    #   truncated or cut:  δ_1 = 2 + 0.5 · 30 - 20 = -3    A = 1 + 0.25 · -3 = 0.25, -3      A + V = 10.25, 17
    #   terminated:        δ_1 = 2 - 20 = -18              A = 1 + 0.25 · -18 = -3.5, -18    A + V = 6.5, 2
    @pytest.mark.parametrize(
        ("terminated", "advantages", "targets"), [(False, (0.25, -3), (10.25, 17)), (True, (-3.5, -18), (6.5, 2))]
    )
    def test_by_hand(self, terminated, advantages, targets):
        got = generalized_advantages(
            f32(1, 2), f32(10, 20), f32(30), np.array([False, terminated]), ends([2]), gamma=0.5, lambda_=0.5
        )
        np.testing.assert_array_equal(got[0], f32(*advantages))
        np.testing.assert_array_equal(got[1], f32(*targets))
        assert got[0].dtype == got[1].dtype == np.float32

    def test_each_segment_takes_its_own_next_value(self):
        # γ = 0.1, λ = 1, values 0: the targets are returns, with the next value as the digit after the last reward.
        terminateds = np.array([0, 0, 0, 1, 0, 0], bool)
        advantages, targets = generalized_advantages(
            f32(1, 2, 3, 4, 5, 6), np.zeros(6, np.float32), f32(7, 8, 9), terminateds, LAST, gamma=0.1, lambda_=1.0
        )
        np.testing.assert_allclose(targets, f32(1.237, 2.37, 3.7, 4, 5.69, 6.9), rtol=1e-6)
        np.testing.assert_array_equal(advantages, targets)

    @pytest.mark.parametrize("lambda_", [0.0, 0.9, 1.0])
    @pytest.mark.parametrize("lengths", [[1000, 1, 3, 1, 1000, 64], [1], [1] * 7, [5, 4, 3, 2, 1], [1, 1000]])
    def test_equals_the_definition(self, lengths, lambda_):
        columns = random_columns(lengths)
        advantages, targets = generalized_advantages(*columns, gamma=0.99, lambda_=lambda_)
        expected = slow_advantages(*columns, 0.99, lambda_)
        np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(targets, expected + columns[1], rtol=1e-6, atol=1e-6)

    def test_equals_rlax(self):
        lengths = [7, 1, 12]
        rewards, values, next_values, terminateds, last = random_columns(lengths)
        advantages, _ = generalized_advantages(rewards, values, next_values, terminateds, last, gamma=0.97, lambda_=0.8)
        start = 0
        for segment, length in enumerate(lengths):
            rows = slice(start, start + length)
            discounts = np.where(terminateds[rows], 0.0, 0.97).astype(np.float32)
            expected = rlax_advantages(rewards[rows], discounts, 0.8, np.append(values[rows], next_values[segment]))
            np.testing.assert_allclose(advantages[rows], expected, rtol=1e-5, atol=1e-5)
            start += length

    def test_where_a_fragment_is_cut_does_not_matter_without_lambda(self):
        rewards, values, next_values, terminateds, last = random_columns([10])
        whole, _ = generalized_advantages(rewards, values, next_values, terminateds, last, gamma=0.9, lambda_=0.0)
        cut_after_4 = np.array([values[4], next_values[0]])
        parts, _ = generalized_advantages(
            rewards, values, cut_after_4, terminateds, ends([4, 6]), gamma=0.9, lambda_=0.0
        )
        np.testing.assert_array_equal(parts, whole)

    def test_next_value_of_a_terminated_segment_is_not_read(self):
        advantages, targets = generalized_advantages(
            f32(1), f32(2), f32(np.nan), np.array([True]), np.array([True]), gamma=0.9, lambda_=0.9
        )
        assert (advantages[0], targets[0]) == (-1, 1)

    def test_arguments_are_left_alone(self):
        columns = random_columns([3, 2])
        before = [column.copy() for column in columns]
        generalized_advantages(*columns, gamma=0.9, lambda_=0.9)
        for column, copy in zip(columns, before, strict=True):
            np.testing.assert_array_equal(column, copy)

    def test_wrong_columns(self):
        rewards, values, next_values, terminateds, last = random_columns([3, 2])
        with pytest.raises(ShapeError, match="values"):
            generalized_advantages(rewards, values[1:], next_values, terminateds, last, gamma=0.9, lambda_=0.9)
        with pytest.raises(ShapeError, match=r"number of trajectory segments.*\n.*\n.*\(1,\)\n.*\(2,\)"):
            generalized_advantages(rewards, values, next_values[1:], terminateds, last, gamma=0.9, lambda_=0.9)
        terminateds[1] = True
        with pytest.raises(BatchError, match=r"terminates inside a trajectory segment.\n.*row 1"):
            generalized_advantages(rewards, values, next_values, terminateds, last, gamma=0.9, lambda_=0.9)


def random_columns(lengths: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(lengths))
    last = ends(lengths)
    rewards, values = rng.normal(size=(2, len(last))).astype(np.float32)
    # Every other segment terminates.
    terminateds = last & (np.cumsum(last) % 2 == 0)
    return rewards, values, rng.normal(size=len(lengths)).astype(np.float32), terminateds, last


class TestDiscountedReturns:
    def test_bootstraps_where_nothing_terminated(self):
        terminateds = np.array([0, 0, 0, 1, 0, 0], bool)
        returns = discounted_returns(f32(1, 2, 3, 4, 5, 6), f32(7, 8, 9), terminateds, LAST, gamma=0.1)
        np.testing.assert_allclose(returns, f32(1.237, 2.37, 3.7, 4, 5.69, 6.9), rtol=1e-6)

    def test_without_a_value_function(self):
        returns = discounted_returns(f32(1, 2, 3, 4, 5, 6), None, NONE_TERMINATED, LAST, gamma=0.1)
        np.testing.assert_allclose(returns, f32(1.23, 2.3, 3, 4, 5.6, 6), rtol=1e-6)

    def test_are_the_value_targets_of_lambda_1(self):
        rewards, values, next_values, terminateds, last = random_columns([5, 300, 1])
        _, targets = generalized_advantages(rewards, values, next_values, terminateds, last, gamma=0.95, lambda_=1.0)
        returns = discounted_returns(rewards, next_values, terminateds, last, gamma=0.95)
        np.testing.assert_allclose(returns, targets, rtol=1e-5, atol=1e-5)


class TestEndlessEnv:
    """Reward 1 for ever, cut by a time limit after 10 steps: V = 1 / (1 - γ) = 10 with γ = 0.9."""

    @staticmethod
    def learned_value(truncation_is_termination: bool, lambda_: float) -> float:
        """The fixed point of V ← mean of the value targets that follow from V."""
        lengths = [10, 10, 3]
        last = ends(lengths)
        ones = np.ones(len(last), np.float32)
        terminateds = last if truncation_is_termination else np.zeros_like(last)
        value = 0.0
        for _ in range(400):
            values, next_values = np.full(len(last), value), np.full(len(lengths), value)
            _, targets = generalized_advantages(
                ones, values, next_values, terminateds, last, gamma=0.9, lambda_=lambda_
            )
            value = float(targets.mean())
        return value

    @pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
    def test_value(self, lambda_):
        assert self.learned_value(False, lambda_) == pytest.approx(10, rel=1e-4)

    @pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
    def test_value_is_wrong_when_truncation_is_treated_as_termination(self, lambda_):
        assert self.learned_value(True, lambda_) < 6
