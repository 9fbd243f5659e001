"""Windows of n steps by hand: γ = 0.1 and rewards 1, 2, 3, ... make returns that read as digits, 1.23."""

from typing import Any

import numpy as np
import pytest

from rollax import SampleBatch
from rollax.batch import Fragment
from tests.replay.reference import DrawsAll, everything


def rows(*trajectories: str, trajectory_ids: list[int] | None = None, start: int = 1) -> Fragment:
    """Segments as text: "123|" terminated after three steps, "12/" truncated, "12" cut by the fragment.

    A digit is a row: its reward, its action, and ten times its observation. The observation after a segment has the
    next digit, like the first row of a segment that continues it.
    """
    columns: dict[str, list] = {name: [] for name in ("obs", "rewards", "terminateds", "truncateds", "trajectory_id")}
    ends, after = [], []
    for trajectory, segment in enumerate(trajectories):
        digits = [int(digit) for digit in segment.rstrip("|/")]
        for slot, digit in enumerate(digits):
            at_end = slot == len(digits) - 1
            columns["obs"].append([digit / 10])
            columns["rewards"].append(float(digit))
            columns["terminateds"].append(at_end and segment.endswith("|"))
            columns["truncateds"].append(at_end and segment.endswith("/"))
            columns["trajectory_id"].append((trajectory_ids or range(start, 99))[trajectory])
        ends.append(len(columns["obs"]) - 1)
        after.append([(digits[-1] + 1) / 10])
    arrays = {name: np.array(values) for name, values in columns.items()}
    arrays["obs"], arrays["rewards"] = arrays["obs"].astype(np.float32), arrays["rewards"].astype(np.float32)
    arrays["actions"] = arrays["rewards"].astype(np.int64)
    return Fragment(arrays, ends, {"obs": np.array(after, np.float32)})


def drawn(buffer: DrawsAll) -> list[tuple]:
    """(obs, reward, new_obs, discount) of all transitions, by obs; observations as their digit, -1 after the end."""
    if not len(buffer):
        return []
    batch = everything(buffer)
    after = np.where(batch["discounts"] == 0, -1, batch["new_obs"][:, 0] * 10)
    columns = np.stack([batch["obs"][:, 0] * 10, batch["rewards"], after, batch["discounts"]], 1)
    return sorted(tuple(row) for row in columns.astype(np.float64).round(4).tolist())


def buffer_of(*batches: Fragment, n_step: int | None = 3, capacity: int = 100, of: Any = DrawsAll) -> Any:
    """A buffer that contains these batches."""
    buffer = of(capacity, gamma=0.1, n_step=n_step)
    for batch in batches:
        buffer.add(batch)
    return buffer


def test_terminated():
    # 1 + 2/10 + 3/100; then the windows reach the end: 2.34, 3.4, 4, without a next value.
    assert drawn(buffer_of(rows("1234|"))) == [(1, 1.23, 4, 0.001), (2, 2.34, -1, 0), (3, 3.4, -1, 0), (4, 4, -1, 0)]


@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_returns_of_whole_rewards_are_not_rounded(dtype):
    batch = rows("1234|")
    batch["rewards"] = batch["rewards"].astype(dtype)
    assert [reward for _, reward, *_ in drawn(buffer_of(batch))] == [1.23, 2.34, 3.4, 4]
    np.testing.assert_allclose(batch.transitions(3, 0.1)["rewards"], [1.23, 2.34, 3.4, 4])
    batch["rewards"] = np.ones(4, np.bool_)
    np.testing.assert_allclose(batch.transitions(3, 0.1)["rewards"], [1.11, 1.11, 1.1, 1])


def test_truncated():
    # The value of the last observation, 5, counts with γ to the power of the steps before it: 3, 2, 1.
    assert drawn(buffer_of(rows("1234/"))) == [
        (1, 1.23, 4, 0.001),
        (2, 2.34, 5, 0.001),
        (3, 3.4, 5, 0.01),
        (4, 4, 5, 0.1),
    ]


def test_cut_and_not_continued():
    # 1234 is cut after 4: the windows of 3 and 4 are incomplete, that of 2 ends at 5.
    assert drawn(buffer_of(rows("1234"))) == [(1, 1.23, 4, 0.001), (2, 2.34, 5, 0.001)]


def test_cut_and_continued():
    first, second = rows("1234"), rows("567|")
    buffer = buffer_of(first, second)
    # 3.45 leads to 6, 4.56 to 7; 5.67, 6.7 and 7 end with the trajectory.
    assert drawn(buffer) == [
        (1, 1.23, 4, 0.001),
        (2, 2.34, 5, 0.001),
        (3, 3.45, 6, 0.001),
        (4, 4.56, 7, 0.001),
        (5, 5.67, -1, 0),
        (6, 6.7, -1, 0),
        (7, 7, -1, 0),
    ]
    # Both fragments in one batch, with the observation between them twice, give the same.
    assert drawn(buffer_of(SampleBatch.concat_samples([first, second]))) == drawn(buffer)


def test_one_step_does_not_wait():
    assert drawn(buffer_of(rows("12"), n_step=1)) == [(1, 1, 2, 0.1), (2, 2, 3, 0.1)]


def test_fragments_of_one_step():
    buffer = buffer_of(*(rows(digit) for digit in "1234"), rows("5/"))
    assert drawn(buffer) == drawn(buffer_of(rows("12345/")))
    assert drawn(buffer)[-1] == (5, 5, 6, 0.1)


def test_concurrent_trajectories():
    # 12 3, 4 567| and 8 9/ in two batches; windows do not leave their trajectories.
    assert drawn(buffer_of(rows("12", "4", "8"), rows("3", "567|", "9/"), n_step=2)) == [
        (1, 1.2, 3, 0.01),
        (2, 2.3, 4, 0.01),  # the 4 observed after the 3, not that of the other trajectory
        (4, 4.5, 6, 0.01),
        (5, 5.6, 7, 0.01),
        (6, 6.7, -1, 0),
        (7, 7, -1, 0),
        (8, 8.9, 10, 0.01),
        (9, 9, 10, 0.1),
    ]


def test_a_trajectory_with_a_gap_does_not_continue():
    # The fragment between them was lost: 2 never gets a second step.
    buffer = buffer_of(rows("12"), rows("56|"), n_step=2)
    assert drawn(buffer) == [(1, 1.2, 3, 0.01), (5, 5.6, -1, 0), (6, 6, -1, 0)]
    restored = buffer_of(n_step=None)
    restored.set_state(buffer.get_state())
    assert drawn(restored) == [(5, 5.6, -1, 0), (6, 6, -1, 0)]  # no window leads from 1 over the gap


def test_a_trajectory_does_not_continue_after_its_end():
    assert drawn(buffer_of(rows("12/"), rows("3|"), n_step=2)) == [(1, 1.2, 3, 0.01), (2, 2, 3, 0.1), (3, 3, -1, 0)]


def test_ring():
    # Six slots. 1234 and the 5 observed after them take five. 567| reuses the slot of 5 and takes two more, the second
    # of which overwrites 1.
    buffer = buffer_of(rows("1234"), capacity=6, n_step=2)
    buffer.add(rows("567|"))
    assert drawn(buffer) == [
        (2, 2.3, 4, 0.01),
        (3, 3.4, 5, 0.01),
        (4, 4.5, 6, 0.01),
        (5, 5.6, 7, 0.01),
        (6, 6.7, -1, 0),
        (7, 7, -1, 0),
    ]
    buffer.add(rows("89/", start=2))
    # The next three slots: those of 2, 3, 4.
    assert [row[0] for row in drawn(buffer)] == [5, 6, 7, 8, 9]


def test_an_overwritten_end_is_not_continued():
    # Four slots: 1, 2 (only observed); then 5678| of another trajectory takes all of them, and 2 is added as a new row.
    buffer = buffer_of(rows("1"), rows("5678|", start=2), capacity=4, n_step=1)
    buffer.add(rows("2|"))
    assert drawn(buffer) == [(2, 2, -1, 0), (6, 6, 7, 0.1), (7, 7, 8, 0.1), (8, 8, -1, 0)]


def test_another_row_in_the_slot_of_an_end_is_not_continued():
    # Four slots: 1, 2 (only observed). Then 8932| of another trajectory, whose 2 takes the slot of the observed one.
    buffer = buffer_of(rows("1"), rows("8932|", start=2), capacity=4, n_step=1)
    buffer.add(rows("23|"))
    # The continued trajectory takes new slots, those of 8 and 9.
    assert drawn(buffer) == [(2, 2, -1, 0), (2, 2, 3, 0.1), (3, 3, -1, 0), (3, 3, 2, 0.1)]


def test_trajectory_ids_need_no_order():
    buffer = buffer_of(rows("12", "45", trajectory_ids=[9, 3]), rows("6|", "3/", trajectory_ids=[3, 9]), n_step=1)
    assert [row[:3] for row in drawn(buffer)] == [(1, 1, 2), (2, 2, 3), (3, 3, 4), (4, 4, 5), (5, 5, 6), (6, 6, -1)]


@pytest.mark.parametrize("n_step", [1, 3])
def test_rewards_are_summed_in_double_precision_and_keep_their_dtype(n_step: int):
    batch = rows("123|")
    assert everything(buffer_of(batch, n_step=n_step))["rewards"].dtype == np.float32
    batch["rewards"] = batch["rewards"].astype(np.float64)
    assert everything(buffer_of(batch, n_step=n_step))["rewards"].dtype == np.float64


def test_windows_up_to_the_end_are_computed_when_the_trajectory_ends(monkeypatch):
    buffer, tried = buffer_of(rows("1"), n_step=None), []
    links = buffer._rows.links
    windows = links.windows
    monkeypatch.setattr(links, "windows", lambda found, *more: tried.append(len(found)) or windows(found, *more))
    for segment in ("2", "3", "4|"):
        buffer.add(rows(segment))
    assert tried == [0, 0, 4]
    assert drawn(buffer) == [(1, 1.234, -1, 0), (2, 2.34, -1, 0), (3, 3.4, -1, 0), (4, 4, -1, 0)]
    restored = buffer_of(rows("1"), rows("2"), n_step=None)
    restored.set_state(restored.get_state())
    restored.add(rows("3"))
    restored.add(rows("4|"))
    assert drawn(restored) == drawn(buffer)
