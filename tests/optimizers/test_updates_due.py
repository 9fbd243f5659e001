"""The exact number of due updates by stored steps, also with other settings after a restore."""

import json

import pytest

from rollax.optimizers.replay_optimizer import UpdatesDue


def after(due: UpdatesDue, *fragments: int) -> list[int]:
    """The updates after each of these fragments."""
    found = []
    for steps in fragments:
        due.add(steps)
        found.append(due.updates)
    return found


def restored(due: UpdatesDue, learning_starts: int, training_intensity: float, *, kept: bool = True) -> UpdatesDue:
    """A run with these settings, restored from the state of another one that has made all due updates."""
    other = UpdatesDue(learning_starts, training_intensity)
    return other.restored(json.loads(json.dumps(due.get_state())), made=due.updates, kept=kept, most_steps=1000)


def test_by_hand():
    # 0.25 for each of the steps beyond 10: of 4 steps 0, 8: 0, 12: 0.5, 16: 1.5, 20: 2.5, 24: 3.5
    assert after(UpdatesDue(10, 0.25), 4, 4, 4, 4, 4, 4) == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize(("updates", "steps"), [(1, 10), (29, 100), (57, 100), (7, 10), (1, 3), (5, 2)])
def test_fractions_add_up_exactly(updates, steps):
    expected = [max(k - 7, 0) * updates // steps for k in range(1, 501)]
    assert after(UpdatesDue(7, updates / steps), *[1] * 500) == expected


@pytest.mark.parametrize("stop", range(0, 60, 7))
def test_a_restored_run_counts_like_a_continued_one(stop):
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

    def test_another_intensity_holds_for_later_steps_only(self):
        assert after(restored(self.made(), 10, 2.0), 0, 1, 1) == [50, 52, 54]
        assert after(restored(self.made(), 10, 0.1), 0, 9, 1) == [50, 50, 51]

    def test_fractions_of_updates_are_kept(self):
        due = UpdatesDue(0, 0.5)
        assert after(due, 3) == [1]
        assert after(restored(due, 0, 0.25), 1, 1) == [1, 2]  # 1.5 + 0.25, + 0.25

    def test_lowered_learning_starts_make_no_earlier_updates_due(self):
        due = UpdatesDue(1000, 0.5)
        assert after(due, 110) == [0]
        assert after(restored(due, 10, 0.5), 0, 2) == [0, 1]

    def test_raised_learning_starts_delay_updates(self):
        assert after(restored(self.made(), 120, 0.5), 0, 10, 2) == [50, 50, 51]


class TestWithoutTheBuffer:
    def test_learning_starts_counts_from_the_restore(self):
        due = UpdatesDue(10, 0.5)
        due.add(110)
        assert after(restored(due, 10, 0.5, kept=False), 10, 2, 2) == [50, 51, 52]

    def test_learning_starts_counts_from_a_second_restore(self):
        due = UpdatesDue(10, 0.5)
        due.add(110)
        due = restored(due, 10, 0.5, kept=False)
        due.add(8)
        assert after(restored(due, 10, 0.5), 2, 2) == [50, 51]


def test_skipped_updates_are_not_due_later():
    due = UpdatesDue(4, 0.5)
    due.add(10)
    due.skip(0)
    assert after(due, 0, 2, 2) == [0, 1, 2]
    due.skip(2)
    assert due.updates == 2
    early = UpdatesDue(8, 0.5)
    early.add(2)
    early.skip(0)  # no effect before learning starts
    assert after(early, 6, 2) == [0, 1]


@pytest.mark.parametrize("forged", [{"before": 1e300}, {"stored": 2**62}, {"training_intensity": 1e300}])
def test_a_forged_state_makes_no_more_updates_due_than_a_full_buffer(forged):
    due = UpdatesDue(4, 0.5)
    due.add(10)  # 3 updates
    state = {**due.get_state(), **forged}
    due = due.restored(state, made=3, kept=True, most_steps=100)
    assert due.updates == 3 + 50
    assert after(due, 2, 2) == [54, 55]


def test_updates_that_are_not_made_yet_stay_due_after_a_restore():
    due = UpdatesDue(4, 0.5)
    due.add(10)
    assert UpdatesDue(4, 0.5).restored(due.get_state(), made=1, kept=True, most_steps=100).updates == 3
