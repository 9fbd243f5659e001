"""Prioritized replay: probabilities, weights, new transitions, and overwritten ones."""

import re
from typing import Any

import numpy as np
import pytest

from rollax import CheckpointError, ConfigError, NonFiniteError, SampleBatch
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.prioritized import PrioritizedReplay
from tests.env.refused import refused
from tests.replay.test_windows import rows


def with_errors(errors: list[float], **settings: float) -> PrioritizedReplay:
    """A buffer of one-step transitions with rewards 1, 2, 3, ... and these errors."""
    buffer = PrioritizedReplay(100, **settings)
    buffer.add(rows("".join(str(slot + 1) for slot in range(len(errors))) + "|"))
    drawn = buffer.sample(500, np.random.default_rng(0))
    indices = np.array([drawn["indices"][drawn["rewards"] == slot + 1][0] for slot in range(len(errors))])
    buffer.update_priorities(indices, np.array(errors))
    return buffer


def shares(buffer: PrioritizedReplay, count: int = 10_000) -> np.ndarray:
    """The share of each reward 1, 2, 3, ... in draws."""
    rewards = buffer.sample(count, np.random.default_rng(1))["rewards"]
    return np.bincount(rewards.astype(int))[1:] / count


def test_probabilities_are_powers_of_the_errors():
    # |δ| + ε = 1, 4, 9 and 16; square roots 1, 2, 3, 4; so P = 0.1, 0.2, 0.3, 0.4. Strata make the shares exact, except
    # for strata with two transitions.
    buffer = with_errors([0.5, -3.5, 8.5, -15.5], alpha=0.5, eps=0.5)
    np.testing.assert_allclose(shares(buffer), [0.1, 0.2, 0.3, 0.4], atol=2e-4)


def test_alpha_0_is_uniform():
    np.testing.assert_allclose(shares(with_errors([1, 2, 3, 94], alpha=0.0)), 0.25, atol=2e-4)


def test_importance_weights():
    # |δ| + ε = 2, 4, 6, so P = 1/6, 2/6, 3/6 and with N = 3: 1/(N·P) = 2, 1, 2/3; divided by the largest: 1, 1/2, 1/3.
    # With β = 2 the squares of these.
    buffer = with_errors([1.5, 3.5, 5.5], alpha=1.0, eps=0.5)
    for beta, expected in ((1.0, [1, 1 / 2, 1 / 3]), (2.0, [1, 1 / 4, 1 / 9]), (0.0, [1, 1, 1])):
        drawn = buffer.sample(60, np.random.default_rng(2), beta=beta)
        weights = [set(drawn["weights"][drawn["rewards"] == reward].tolist()) for reward in (1, 2, 3)]
        np.testing.assert_allclose(sorted(map(list, weights), reverse=True), np.array(expected)[:, None], rtol=1e-6)
        assert drawn["weights"].dtype == np.float32


def test_new_transitions_get_the_largest_priority_so_far():
    # 3 has had the largest error, 64, and then a smaller one, 1. The new ones, 4 and 5, still get 64, with the root 8.
    buffer = with_errors([1, 1, 64], alpha=0.5, eps=1e-9)
    buffer.update_priorities(buffer.sample(100, np.random.default_rng(3))["indices"], np.ones(100))
    buffer.add(rows("45|", start=2))
    np.testing.assert_allclose(shares(buffer, 19_000), np.array([1, 1, 1, 8, 8]) / 19, atol=2e-4)


def test_the_last_of_several_errors_of_a_transition_counts():
    buffer = with_errors([1, 1], alpha=1.0, eps=1e-9)
    drawn = buffer.sample(2, np.random.default_rng(0))
    one, other = drawn["indices"][np.argsort(drawn["rewards"])]
    buffer.update_priorities(np.array([one, other, one]), np.array([50.0, 1.0, 3.0]))
    np.testing.assert_allclose(shares(buffer), [0.75, 0.25], atol=2e-4)


def test_the_end_of_a_segment_is_drawn_only_when_complete():
    buffer = PrioritizedReplay(6, n_step=2, gamma=0.1)
    buffer.add(rows("123"))
    seen = set()
    for digits in ("45", "6"):
        seen |= set(buffer.sample(100, np.random.default_rng(0))["rewards"].round(3).tolist())
        buffer.add(rows(digits))
    # 3.4 is complete with the 4, and 5.6 with the 6; 6 waits for 7.
    assert seen == {np.float32(x).item() for x in np.array([1.2, 2.3, 3.4, 4.5], np.float32)}
    drawn = buffer.sample(100, np.random.default_rng(0))
    assert set(drawn["rewards"].round(3).tolist()) <= {np.float32(x).item() for x in (2.3, 3.4, 4.5, 5.6)}
    assert len(buffer) == 4  # slots of 2 to 6, and of 7, only observed; 6 waits


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.5, 1.0, [1, 4, 9, 16]),  # |δ| + ε; the state has the roots
        (1.0, 0.5, [1, 2, 3, 4]),
        (1.0, 0.0, [1, 1, 1, 1]),
        (0.0, 1.0, [1, 1, 1, 1]),  # the errors are not in the state
    ],
)
def test_another_alpha_after_a_restore_changes_stored_priorities(before: float, after: float, expected: list[float]):
    saved, buffer = with_errors([0.5, -3.5, 8.5, -15.5], alpha=before, eps=0.5), PrioritizedReplay(100, alpha=after)
    buffer.set_state(saved.get_state())
    np.testing.assert_allclose(shares(buffer), np.array(expected) / sum(expected), atol=2e-4)
    same_rows = with_errors([9.0, 9.0, 9.0, 9.0], alpha=after)
    same_rows.set_priorities(saved.get_priorities())
    np.testing.assert_allclose(shares(same_rows), np.array(expected) / sum(expected), atol=2e-4)


def test_a_state_without_alpha_has_the_alpha_of_the_buffer():
    state = with_errors([0.5, -3.5, 8.5, -15.5], alpha=0.5, eps=0.5).get_state()
    del state["alpha"]
    buffer = PrioritizedReplay(100, alpha=0.5)
    buffer.set_state(state)
    np.testing.assert_allclose(shares(buffer), [0.1, 0.2, 0.3, 0.4], atol=2e-4)


@pytest.mark.parametrize(
    "forged",
    [
        {"priorities": np.full(4, 1e308)},  # the sum overflows
        {"priorities": np.full(4, np.inf)},
        {"priorities": np.full(4, np.nan)},
        {"priorities": -np.ones(4)},
        {"priorities": np.full(4, 2.0), "alpha": 1e-300},  # 2**1e300
        {"largest_priority": 1e308},  # new transitions would get 1e308**2
    ],
)
def test_forged_priorities_are_refused(forged: dict[str, Any]):
    buffer = with_errors([1.0, 2.0, 3.0, 4.0], alpha=2.0)
    before = shares(buffer)
    state = buffer.get_state()
    assert len(state["priorities"]) == 4
    refused(CheckpointError, buffer.set_state, {**state, **forged})
    refused(CheckpointError, buffer.set_priorities, {**buffer.get_priorities(), **forged})
    if "priorities" not in forged:
        refused(CheckpointError, buffer.set_state, forged)
    np.testing.assert_array_equal(shares(buffer), before)


def test_draws_are_in_random_order():
    drawn = with_errors([1.0] * 8).sample(400, np.random.default_rng(5))["rewards"]
    # The mean of 100 of the numbers 1 to 8 is 4.5, with a deviation of 2.3 / 10; in rising order it would be 1.5.
    assert abs(drawn[:100].mean() - 4.5) < 1.0


def test_late_errors_do_not_change_new_rows_in_the_slot():
    buffer = PrioritizedReplay(4, alpha=1.0)
    buffer.add(rows("123|"))
    late = buffer.sample(64, np.random.default_rng(0))["indices"]
    buffer.add(rows("456|", start=2))  # overwrites 1 and 2, not 3
    buffer.update_priorities(late, np.full(64, 97 - buffer.eps))
    # Of 3, 4, 5, 6 only 3 was drawn before: 97 of 100.
    np.testing.assert_allclose(shares(buffer), [0, 0, 0.97, 0.01, 0.01, 0.01], atol=2e-4)


def test_initial_priorities():
    # Ape-X: actors send the first errors. 1, 2 and 5 of 8.
    batch = rows("123")
    batch["priorities"] = np.array([1.0, 2.0, 5.0], np.float32)
    buffer = PrioritizedReplay(100, alpha=1.0, eps=1e-9, columns=["priorities"])
    buffer.add(batch)
    np.testing.assert_allclose(shares(buffer), np.array([1, 2, 5]) / 8, atol=2e-4)


@pytest.mark.parametrize(("alpha", "error"), [(0.6, np.nan), (0.0, np.inf), (10.0, 1e31)])  # 1e310 is no float64
def test_errors_without_a_finite_priority_are_refused(alpha: float, error: float):
    buffer = with_errors([1, 2], alpha=alpha)
    before = shares(buffer)
    with pytest.raises(NonFiniteError, match=re.escape(str(np.float64(error)))):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0, error]))
    assert (shares(buffer) == before).all()


@pytest.mark.parametrize(
    "settings", [{"alpha": -0.1}, {"eps": 0.0}, {"eps": 1e-40, "alpha": 10.0}, {"n_step": 0}, {"gamma": 1.1}]
)
def test_settings_out_of_range(settings: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        PrioritizedReplay(10, **settings)


def test_weights_of_sequences():
    buffer = with_errors([0.5, 1.5], alpha=1.0, eps=0.5)
    drawn = buffer.sample(9, np.random.default_rng(0), beta=1.0, draw=SequenceDraw(1))
    # Priorities are 1 and 2, so that the weight of 2 is half of that of 1. The row after 1 has no loss.
    by_reward = dict(zip(drawn["rewards"][::2].tolist(), drawn["weights"][::2].tolist(), strict=True))
    assert by_reward == {1.0: 1.0, 2.0: 0.5}
    assert not drawn["weights"][1::2].any()
    assert isinstance(drawn, SampleBatch)


def test_priorities_of_sequences():
    # Sequences of two rows, 12, 34 and 5, with errors 1, 4 and 9: every row has the priority of its sequence. α = ½:
    # roots 1, 1, 2, 2, 3, so P(12) = 2/9, P(34) = 4/9, P(5) = 3/9.
    buffer = PrioritizedReplay(100, alpha=0.5, eps=1e-9)
    buffer.add(rows("12345|"))
    draw = SequenceDraw(2)
    drawn = buffer.sample(60, np.random.default_rng(0), draw=draw)
    firsts = drawn["obs"].reshape(60, 3)[:, 0] * 10
    buffer.update_priorities(drawn["indices"], np.array([0.0, 1.0, 0.0, 4.0, 0.0, 9.0])[firsts.round().astype(int)])
    np.testing.assert_allclose(buffer._tree.leaves[:5], [1, 1, 2, 2, 3], rtol=1e-6)
    drawn = buffer.sample(9000, np.random.default_rng(1), draw=draw, beta=1.0)
    firsts = (drawn["obs"].reshape(-1, 3)[:, 0] * 10).round().astype(int)
    np.testing.assert_allclose(np.bincount(firsts, minlength=6)[[1, 3, 5]] / 9000, [2 / 9, 4 / 9, 3 / 9], atol=2e-3)
    # With β = 1 the weights undo the probabilities: in proportion to 9/2, 9/4 and 9/3.
    weights = drawn["weights"].reshape(-1, 3)[:, 0]
    of_sequences = np.array([weights[firsts == first][0] for first in (1, 3, 5)])
    np.testing.assert_allclose(of_sequences / of_sequences[0], [1, 1 / 2, 2 / 3], rtol=1e-5)


def test_only_the_rows_that_draw_a_sequence_get_its_priority():
    # Sequences of three rows begin every two rows: 123 is drawn by 1 and 2, 345 by 3 and 4, 5 by 5.
    buffer = PrioritizedReplay(100, alpha=1.0, eps=1e-9)
    buffer.add(rows("12345|"))
    drawn = buffer.sample(40, np.random.default_rng(0), draw=SequenceDraw(3, burn_in=1, overlap=1))
    of_first = np.flatnonzero((drawn["indices"] == 0).reshape(40, -1).any(axis=1))
    size = drawn.max_seq_len
    buffer.update_priorities(drawn["indices"].reshape(40, size)[of_first].ravel(), np.full(len(of_first), 7.0))
    np.testing.assert_allclose(buffer._tree.leaves[:5], [7, 7, 1, 1, 1], rtol=1e-6)
