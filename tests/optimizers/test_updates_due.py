"""How many updates are due: by the steps in memory, exactly, and under settings that change at a restore."""

from __future__ import annotations

import json

import pytest

from rollax.optimizers.updates_due import UpdatesDue


def after(due: UpdatesDue, *fragments: int) -> list[int]:
    """The updates after each of these fragments."""
    found = []
    for steps in fragments:
        due.add(steps)
        found.append(due.updates)
    return found


def restored(due: UpdatesDue, learning_starts: int, training_intensity: float, *, kept: bool = True) -> UpdatesDue:
    """A run of these settings that goes on from what another saved, after as many updates as were due there."""
    other = UpdatesDue(learning_starts, training_intensity)
    other.restore(json.loads(json.dumps(due.get_state())), made=due.updates, kept=kept)
    return other


def test_by_hand():
    # 0.25 for each of the steps beyond 10: of 4 steps 0, 8: 0, 12: 0.5, 16: 1.5, 20: 2.5, 24: 3.5
    assert after(UpdatesDue(10, 0.25), 4, 4, 4, 4, 4, 4) == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("intensity", [0.1, 0.3, 0.7, 1 / 3, 2.5])
def test_fractions_do_not_add_up_to_something_else(intensity):
    assert after(UpdatesDue(7, intensity), *[1] * 500) == [int(max(k - 7, 0) * intensity) for k in range(1, 501)]


@pytest.mark.parametrize("stop", range(0, 60, 7))
def test_a_run_that_is_restored_counts_as_one_that_went_on(stop):
    whole, part = UpdatesDue(20, 0.7), UpdatesDue(20, 0.7)
    expected = after(whole, *[3] * 40)
    before = after(part, *[3] * (stop // 3))
    assert before + after(restored(part, 20, 0.7), *[3] * (40 - stop // 3)) == expected


class TestOtherSettings:
    def made(self) -> UpdatesDue:
        """110 steps: half of an update for each of 100."""
        due = UpdatesDue(10, 0.5)
        assert after(due, 110) == [50]
        return due

    def test_of_another_intensity_only_later_steps_are(self):
        assert after(restored(self.made(), 10, 2.0), 0, 1, 1) == [50, 52, 54]
        assert after(restored(self.made(), 10, 0.1), 0, 9, 1) == [50, 50, 51]

    def test_what_was_due_in_part_stays_so(self):
        due = UpdatesDue(0, 0.5)
        assert after(due, 3) == [1]
        assert after(restored(due, 0, 0.25), 1, 1) == [1, 2]  # 1.5 + 0.25, + 0.25

    def test_learning_starts_lowered_is_not_made_up_for(self):
        due = UpdatesDue(1000, 0.5)
        assert after(due, 110) == [0]
        assert after(restored(due, 10, 0.5), 0, 2) == [0, 1]

    def test_learning_starts_raised_lets_updates_wait(self):
        assert after(restored(self.made(), 120, 0.5), 0, 10, 2) == [50, 50, 51]


class TestWithoutWhatWasKept:
    def test_learning_starts_counts_anew(self):
        due = UpdatesDue(10, 0.5)
        due.add(110)
        assert after(restored(due, 10, 0.5, kept=False), 10, 2, 2) == [50, 51, 52]

    def test_and_again_after_another_restore(self):
        due = UpdatesDue(10, 0.5)
        due.add(110)
        due = restored(due, 10, 0.5, kept=False)
        due.add(8)
        assert after(restored(due, 10, 0.5), 2, 2) == [50, 51]


def test_skipped_updates_do_not_come_later():
    due = UpdatesDue(4, 0.5)
    due.add(10)
    due.skip(0)
    assert after(due, 0, 2, 2) == [0, 1, 2]
    due.skip(2)
    assert due.updates == 2
    early = UpdatesDue(8, 0.5)
    early.add(2)
    early.skip(0)  # before its time nothing is lost by it
    assert after(early, 6, 2) == [0, 1]
