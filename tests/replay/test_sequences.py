"""Sequences for recurrent policies: their rows, ends, burn-in, and first states."""

import pickle

import numpy as np
import pytest

from rollax import ConfigError, SampleBatch
from rollax.batch import Fragment
from rollax.policy.replayed import Draw
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.uniform import UniformReplay
from tests.replay.reference import DrawsAll
from tests.replay.test_windows import buffer_of, rows

RNG = np.random.default_rng(0)


def stateful(*segments: str, **settings: int) -> Fragment:
    """Rows whose `state_in` is ten times their observation."""
    batch = rows(*segments, **settings)
    for columns in (batch, batch.after):
        columns["state_in"] = (columns["obs"] * 100,)
    return batch


def of_states(*batches: str, capacity: int = 100) -> DrawsAll:
    """A buffer of these batches, with states; spaces separate the segments of a batch."""
    buffer = DrawsAll(capacity, columns=["state_in"])
    for batch in batches:
        buffer.add(stateful(*batch.split()))
    return buffer


def digits(batch: SampleBatch) -> list[list[int]]:
    """The digits observed in each sequence."""
    return (batch["obs"][:, 0] * 10).round().astype(int).reshape(-1, batch.max_seq_len).tolist()


def drawn(buffer: DrawsAll, length: int, burn_in: int = 0) -> dict[int, tuple]:
    """First digit to learn from -> digits observed, rewards, and text: . burn-in, r learned, b bootstrap, - padding."""
    batch = buffer.sample(0, RNG, draw=SequenceDraw(length, burn_in, length - 1))
    found = {}
    states = batch["state_in"][0]
    for number, size in enumerate(batch.seq_lens.tolist()):
        rows_of_one = slice(number * batch.max_seq_len, (number + 1) * batch.max_seq_len)
        segment = {name: batch[name][rows_of_one] for name in ("obs", "rewards", "bootstrap", "weights")}
        learned = segment["weights"] > 0
        kinds = np.where(segment["bootstrap"], "b", np.where(learned, "r", "."))
        kinds[size:] = "-"
        observed = (segment["obs"][:, 0] * 10).round().astype(int)
        assert states[number].ravel().tolist() == pytest.approx([observed[0] * 10])
        text = "".join(kinds)
        found[int(observed[np.flatnonzero(learned)[0]])] = (observed.tolist(), segment["rewards"].tolist(), text)
    return found


def test_ends_of_sequences():
    assert drawn(of_states("123| 67/ 9"), 2) == {
        1: ([1, 2, 3], [1, 2, 0], "rrb"),  # 3 is a bootstrap row here, without its reward
        2: ([2, 3, 0], [2, 3, 0], "rr-"),  # terminated: no bootstrap row
        3: ([3, 0, 0], [3, 0, 0], "r--"),
        6: ([6, 7, 8], [6, 7, 0], "rrb"),  # truncated: the last observation
        7: ([7, 8, 0], [7, 0, 0], "rb-"),
        9: ([9, 10, 0], [9, 0, 0], "rb-"),  # continues later
    }


def test_across_fragments_and_burn_in():
    assert drawn(of_states("12", "345/"), 2, burn_in=2) == {
        1: ([1, 2, 3, 0, 0], [1, 2, 0, 0, 0], "rrb--"),
        2: ([1, 2, 3, 4, 0], [1, 2, 3, 0, 0], ".rrb-"),
        3: ([1, 2, 3, 4, 5], [1, 2, 3, 4, 0], "..rrb"),
        4: ([2, 3, 4, 5, 6], [2, 3, 4, 5, 0], "..rrb"),
        5: ([3, 4, 5, 6, 0], [3, 4, 5, 0, 0], "..rb-"),
    }


def test_burn_in_excludes_overwritten_rows():
    # Six slots: 1 to 5 and the 6 observed last; then 67| reuses the slot of 6, and 7 overwrites 1.
    found = drawn(of_states("12345", "67|", capacity=6), 1, burn_in=3)
    assert found[2][0] == [2, 3, 0, 0, 0]
    assert found[4][0] == [2, 3, 4, 5, 0]
    assert found[7][0] == [4, 5, 6, 7, 0]


def test_columns_of_a_padded_batch():
    buffer = UniformReplay(100, columns=["state_in"])
    buffer.add(stateful("1234|"))
    batch = buffer.sample(5, RNG, draw=SequenceDraw(3, 1, overlap=2))
    assert batch.count == 5 * 5
    assert batch.max_seq_len == 5
    terminated = (batch["obs"][:, 0].round(3) == np.float32(0.4)) & ~batch["bootstrap"]
    acted = batch.mask() & ~batch["bootstrap"]
    assert (batch["discounts"][acted & ~terminated] == np.float32(0.99)).all()
    assert not batch["discounts"][terminated | ~acted].any()
    assert (batch["target_steps"] == np.where(acted, np.arange(25) % 5 + ~terminated, 0)).all()
    single = buffer.sample(5, np.random.default_rng(0))
    assert set(batch["indices"].tolist()) - {-1} <= {0, 1, 2, 3}
    assert single["indices"].dtype == batch["indices"].dtype
    assert batch["obs"].dtype == np.float32


def test_indices_name_the_same_rows_in_both_kinds_of_sample():
    buffer = buffer_of(rows("12345|"), n_step=1, of=UniformReplay)
    single = buffer.sample(50, RNG)
    action_of = dict(zip(single["indices"].tolist(), single["actions"].tolist(), strict=True))
    batch = buffer.sample(50, RNG, draw=SequenceDraw(1))
    assert [action_of[index] for index in batch["indices"][::2].tolist()] == batch["actions"][::2].tolist()


def test_a_truncated_trajectory_does_not_continue():
    # 3| has the number of the trajectory that was truncated after 2, where it observed 3.
    buffer = of_states("12/", "3|")
    assert drawn(buffer, 1, burn_in=2)[3] == ([3, 0, 0, 0], [3, 0, 0, 0], "r---")
    assert len(buffer) == 3


def test_aligned_with_the_beginning_of_a_trajectory():
    # 12345/ in parts of two: 12, 34, 5; both transitions of a part draw it. Parts never span trajectories: 67| and 9
    # have their own.
    buffer = of_states("123 67|", "45/ 9")
    batch = buffer.sample(0, RNG, draw=SequenceDraw(2))
    twice = [[1, 2, 3], [3, 4, 5], [6, 7, 0]]
    assert sorted(digits(batch)) == sorted([*twice, *twice, [5, 6, 0], [9, 10, 0]])
    # All rows of a part draw it, so its priority is set in all of them.
    assert set(batch["indices"].tolist()) == {*buffer.sample(0, RNG)["indices"].tolist(), -1}
    acted = batch.mask() & ~batch["bootstrap"]
    assert ((batch["indices"] >= 0) == acted).all()


def test_aligned_with_an_overwritten_beginning():
    # Six slots: 1 has been overwritten; of the parts 12, 34, 56, 7 the first has 2 only.
    buffer, restored = of_states("12345", "67|", capacity=6), of_states(capacity=6)
    restored.set_state(buffer.get_state())
    for one in (buffer, restored):
        found = {tuple(row) for row in digits(one.sample(0, RNG, draw=SequenceDraw(2)))}
        assert found == {(2, 3, 0), (3, 4, 5), (5, 6, 7), (7, 0, 0)}


def test_burn_in_before_an_aligned_part():
    batch = of_states("12345|").sample(0, RNG, draw=SequenceDraw(2, burn_in=1))
    assert {tuple(row) for row in digits(batch)} == {(1, 2, 3, 0), (2, 3, 4, 5), (4, 5, 0, 0)}


def test_n_step_returns_end_with_the_sequence():
    # γ = 0.1: returns read as digits. Three rows of 12345/ from 2 on; the 5 after them is only used for its value.
    batch = buffer_of(rows("12345/"), n_step=2).sample(0, RNG, draw=SequenceDraw(3, overlap=2))
    at = slice(4, 8)
    assert (batch["obs"][at, 0] * 10).round().tolist() == [2, 3, 4, 5]
    np.testing.assert_allclose(batch["rewards"][at], [2.3, 3.4, 4, 0], rtol=1e-6)
    np.testing.assert_allclose(batch["discounts"][at], [0.01, 0.01, 0.1, 0], rtol=1e-6)
    assert batch["target_steps"][at].tolist() == [2, 3, 3, 0]
    # The last two rows, 4 and 5, and the 6 that was observed after the truncation.
    np.testing.assert_allclose(batch["rewards"][12:16], [4.5, 5, 0, 0], rtol=1e-6)
    assert batch["target_steps"][12:16].tolist() == [2, 2, 0, 0]


def test_returns_of_whole_rewards_are_not_rounded():
    batch = rows("123|")
    batch["rewards"] = batch["rewards"].astype(np.int64)
    found = buffer_of(batch, n_step=2).sample(0, RNG, draw=SequenceDraw(3, overlap=2))
    np.testing.assert_allclose(found["rewards"][:4], [1.2, 2.3, 3, 0], rtol=1e-6)


def test_rows_of_aligned_sequences_have_equal_total_weights():
    # Trajectories of three rows in parts of two, 12 and 3: drawing every transition gives 12 twice and 3 once. Weights
    # are proportional to 1/2, 1/2, 1, and their mean over 1, 2, 1, 2, 3 is 1: each row has a total weight of 5/3.
    batch = of_states("123/ 456/").sample(0, RNG, draw=SequenceDraw(2))
    rows, weights = (batch["obs"][:, 0] * 10).round().astype(int), batch["weights"]
    np.testing.assert_allclose(np.bincount(rows, weights)[1:7], np.full(6, 5 / 3), rtol=1e-6)
    assert weights[weights > 0].mean() == pytest.approx(1)


def test_overlapping_sequences():
    # Sequences of three rows begin every two rows: 123, 345 and 56. The first two rows of each draw it.
    batch = of_states("123456/").sample(0, RNG, draw=SequenceDraw(3, burn_in=1, overlap=1))
    assert digits(batch) == [
        *[[1, 2, 3, 4, 0]] * 2,  # no rows before the first one
        *[[2, 3, 4, 5, 6]] * 2,
        *[[4, 5, 6, 7, 0]] * 2,
    ]
    learned = (batch["weights"] > 0).reshape(-1, 5).astype(int)
    assert learned.tolist() == [*[[1, 1, 1, 0, 0]] * 2, *[[0, 1, 1, 1, 0]] * 2, *[[0, 1, 1, 0, 0]] * 2]
    # Only the first two rows of a sequence draw it.
    assert batch["indices"].reshape(-1, 5).tolist() == [
        *[[0, 1, -1, -1, -1]] * 2,
        *[[-1, 2, 3, -1, -1]] * 2,
        *[[-1, 4, 5, -1, -1]] * 2,
    ]
    # Each is drawn by two of six rows, so all weights are equal.
    np.testing.assert_allclose(batch["weights"][batch["weights"] > 0], 1, rtol=1e-6)


def test_weights_of_a_short_overlapping_sequence():
    # 123 by 1 and 2; 345 by 3 and 4; 5 by 5 alone. Weights are in proportion to 1/2, 1/2 and 1; over the learned rows
    # of all five draws (3 + 3 + 3 + 3 + 1 = 13) the sum of weights is c (3 + 3 + 1) = 13, so c = 13 / 7.
    batch = buffer_of(rows("12345/"), n_step=1).sample(0, RNG, draw=SequenceDraw(3, overlap=1))
    weights = batch["weights"].reshape(5, 4)
    np.testing.assert_allclose(weights[:4, :3], 13 / 14, rtol=1e-6)
    np.testing.assert_allclose(weights[4], [13 / 7, 0, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("settings", [{"length": 0}, {"burn_in": -1}, {"overlap": 2}, {"overlap": -1}], ids=str)
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SequenceDraw(**{"length": 2, **settings})


def test_a_draw_is_equal_to_its_copy_and_can_be_pickled():
    draw = SequenceDraw(4, burn_in=2, overlap=1, columns=("state_in",))
    assert pickle.loads(pickle.dumps(draw)) == draw  # noqa: S301  its own pickle
    assert len({draw, SequenceDraw(4, 2, 1, columns=("state_in",))}) == 1


def test_later_rows_of_a_trajectory():
    # 12 and 345/ are one trajectory in two fragments, with 89 of another one between them; after 5 only its observation
    # is stored, after 9 nothing, as the trajectory terminated.
    buffer = buffer_of(rows("12", "89|"), rows("345/"), n_step=1)
    slots = buffer.draw_slots(0, RNG)
    actions = buffer.read("rewards", slots).astype(int).tolist()
    ahead = dict(zip(actions, buffer.rows_ahead(slots).tolist(), strict=True))
    assert ahead == {1: 4, 2: 3, 3: 2, 4: 1, 5: 0, 8: 1, 9: 0}
    for steps in range(5):
        reached = [action for action in actions if ahead[action] >= steps]
        at = slots[[ahead[action] >= steps for action in actions]]
        later = buffer.read("rewards", buffer.slots_ahead(at, np.full(len(at), steps)))
        assert later.astype(int).tolist() == [action + steps for action in reached]


def test_a_draw_changes_what_a_buffer_returns():
    class Doubled(Draw):
        def draw(self, replay, count, rng, beta):
            batch = super().draw(replay, count, rng, beta)
            batch["rewards"] *= 2
            return batch

    buffer = buffer_of(rows("123|"), n_step=1, of=UniformReplay)
    single, doubled = (buffer.sample(20, np.random.default_rng(0), draw=draw) for draw in (Draw(), Doubled()))
    assert (doubled["rewards"] == 2 * single["rewards"]).all()
    assert (buffer.sample(20, np.random.default_rng(0))["rewards"] == single["rewards"]).all()
