"""`Trajectories` by hand: three trajectories over two fragments."""

import numpy as np
import pytest

from rollax.errors import PolicyError
from rollax.rollout.table import Table
from rollax.rollout.trajectories import Trajectories


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def empty(slots: int = 64) -> Trajectories:
    return Trajectories(frozenset(), Table(slots), "pending row")


def decide(trajectories: Trajectories, at: np.ndarray, numbers: list[int], obs: list[float], episodes=None) -> None:
    ids = np.array([7] * len(numbers) if episodes is None else episodes)
    columns = {"obs": {"x": np.array(obs, np.float32)}, "actions": np.array(obs, np.int64) * 10}
    trajectories.append(at, np.array(numbers), ids, columns)


def record_outcomes(trajectories: Trajectories, at: np.ndarray, rewards, term=None, trunc=None, complete=True) -> None:
    no = [False] * len(at)
    flags = (np.array(no if flag is None else flag, bool) for flag in (term, trunc))
    trajectories.record_outcomes(at, np.array(rewards, np.float64), complete, *flags)


def final(trajectories: Trajectories, at: np.ndarray, obs: list[float]) -> None:
    trajectories.set_final_inputs(at, {"obs": {"x": np.array(obs, np.float32)}})


def test_dicts_with_their_keys_in_another_order_are_stored_by_key():
    t, whole, half = empty(), np.array([3]), np.array([0.5])
    for number, obs in enumerate(({"n": whole, "x": half}, {"x": half, "n": whole})):
        t.append(slots(0), np.array([number]), np.array([7]), {"obs": obs, "actions": whole})
        record_outcomes(t, slots(0), [1.0], term=[True])
    obs = t.cut(Waiting())["obs"]
    assert (obs["n"].tolist(), obs["x"].tolist()) == ([3, 3], [0.5, 0.5])


class Waiting:
    """The pending observations of trajectories; records the requested trajectories."""

    def __init__(self, **obs: float) -> None:
        self.obs, self.asked = {int(trajectory[1:]): value for trajectory, value in obs.items()}, []

    def __call__(self, trajectories: np.ndarray) -> dict:
        self.asked += trajectories.tolist()
        return {"obs": {"x": np.array([self.obs[trajectory] for trajectory in trajectories.tolist()], np.float32)}}


class TestCut:
    def make(self) -> Trajectories:
        """Trajectory 0 (slot 0) continues, 1 (slot 1) ends and 3 takes its slot, 2 (slot 2) has no outcome."""
        t = empty()
        decide(t, slots(0, 1, 2), [0, 1, 2], [1, 2, 3])
        record_outcomes(t, slots(0, 1), [0.5, 1.5], term=[False, True])
        final(t, slots(1), [9])
        decide(t, slots(0, 1), [0, 3], [4, 5], episodes=[7, 8])
        record_outcomes(t, slots(0, 2), [2.5, 3.5], complete=np.array([True, False]))
        record_outcomes(t, slots(2), [4.5], complete=False)
        return t

    def test_complete_rows_are_sorted_with_their_next_observations(self):
        t, waiting = self.make(), Waiting(L0=6)
        batch = t.cut(waiting)
        assert batch is not None
        assert batch["obs"]["x"].tolist() == [1, 4, 2]
        assert batch["actions"].tolist() == [10, 40, 20]
        assert batch["rewards"].tolist() == [0.5, 2.5, 1.5]
        assert batch["terminateds"].tolist() == [False, False, True]
        assert batch["eps_id"].tolist() == [7, 7, 7]
        assert batch.ends.tolist() == [1, 2]
        # Trajectory 0 waits with observation 6; trajectory 1 ended with 9.
        assert batch.after["obs"]["x"].tolist() == [6, 9]
        assert waiting.asked == [0]
        assert not [name for name in batch if name.startswith("_")]
        assert len(t) == 2

    def test_carried_rows_come_later_with_all_their_rewards(self):
        t = self.make()
        t.cut(Waiting(L0=6))
        decide(t, slots(0), [0], [6])
        record_outcomes(t, slots(0, 1, 2), [0.25, 1, 1], trunc=[False, False, True])
        final(t, slots(2), [8])
        batch = t.cut(Waiting(L0=11, L3=12))
        assert batch["obs"]["x"].tolist() == [6, 3, 5]
        assert batch["rewards"].tolist() == [0.25, 9, 1]  # trajectory 2: 3.5 + 4.5 before the cut, 1 after it
        assert batch["truncateds"].tolist() == [False, True, False]
        assert batch["eps_id"].tolist() == [7, 7, 8]
        assert batch.ends.tolist() == [0, 1, 2]
        assert batch.after["obs"]["x"].tolist() == [11, 8, 12]
        assert len(t) == 0

    def test_the_next_observation_of_a_row_before_a_carried_one(self):
        t = empty()
        decide(t, slots(0), [0], [1])
        record_outcomes(t, slots(0), [1])
        decide(t, slots(0), [0], [2])
        cut = t.cut(Waiting())  # no observation is pending: the trajectory has acted on its last one
        assert cut.after["obs"]["x"].tolist() == [2]

    def test_an_end_without_a_last_observation_uses_the_previous_one(self):
        t = empty()
        decide(t, slots(0), [0], [5])
        record_outcomes(t, slots(0), [1], trunc=[True])
        assert t.cut(Waiting()).after["obs"]["x"].tolist() == [5]

    def test_only_finished_episodes(self):
        t = self.make()
        record_outcomes(t, slots(1, 2), [0, 0], term=[True, True])
        assert t.cut(Waiting(), finished=slots(99)) is None
        cut = t.cut(Waiting(), finished=slots(8))
        assert cut["obs"]["x"].tolist() == [5]
        # Trajectory 0 of episode 7 still runs, so the rows of that episode are kept, with their last observations.
        record_outcomes(t, slots(0), [0], term=[True])
        cut = t.cut(Waiting(), finished=slots(7))
        assert cut["obs"]["x"].tolist() == [1, 4, 2, 3]
        assert cut.after["obs"]["x"].tolist() == [4, 9, 3]

    def test_no_complete_rows(self):
        t = empty()
        assert t.cut(Waiting()) is None
        decide(t, slots(0), [0], [1])
        assert t.cut(Waiting()) is None
        record_outcomes(t, slots(0), [0])
        assert t.cut(Waiting(L0=3))["rewards"].tolist() == [0]


class TestColumns:
    def test_more_rows_and_slots_than_the_initial_capacity(self):
        count = 700
        t, everyone = empty(count), np.arange(count)
        for step in range(3):
            decide(t, everyone, everyone.tolist(), (everyone + 1000 * step).tolist())
            record_outcomes(t, everyone, np.ones(count))
        cut = t.cut(lambda trajectories: {"obs": {"x": trajectories.astype(np.float32) + 3000}})
        assert len(cut) == 3 * count
        assert cut["obs"]["x"][:6].tolist() == [0, 1000, 2000, 1, 1001, 2001]
        assert cut.after["obs"]["x"].tolist() == (everyone + 3000.0).tolist()

    def test_batches_are_copies(self):
        t = empty()
        decide(t, slots(0), [0], [1])
        record_outcomes(t, slots(0), [1], term=[True])
        cut = t.cut(Waiting())
        decide(t, slots(0), [1], [2])
        assert cut["obs"]["x"].tolist() == cut.after["obs"]["x"].tolist() == [1]

    @pytest.mark.parametrize("second", [{"obs": [1.0]}, {"obs": [1.0], "a": [1]}, {"obs": [1.0], "b": [1], "a": [1]}])
    def test_changing_names_are_refused(self, second):
        t = empty()
        t.append(slots(0), slots(0), slots(0), {"obs": np.ones(1), "b": np.ones(1)})
        with pytest.raises(PolicyError, match="columns of a policy differ") as caught:
            t.append(slots(0), slots(0), slots(0), {name: np.array(value) for name, value in second.items()})
        assert "['b', 'obs']" in str(caught.value)
