"""`SyncReplayOptimizer` with stand-ins: updates of each policy, and restored runs."""

import json

import numpy as np
import pytest

from rollax import MultiAgentBatch, SyncReplayOptimizer
from rollax.batch import Fragment
from rollax.config.replay_groups import ReplayFields
from rollax.errors import CheckpointError
from rollax.policy.policy import Policy
from rollax.replay.frames import StackedFrames
from rollax.replay.uniform import UniformReplay
from tests.env.refused import refused
from tests.optimizers import replay_stand_ins
from tests.optimizers.replay_stand_ins import RowWorker
from tests.optimizers.stand_ins import STEPS, learning, policy_of, steps

SMALL = {**replay_stand_ins.SMALL, "buffer_size": 500, "training_intensity": 0.5}


class Late(RowWorker):
    """`b` has no rows before its third fragment."""

    def sample(self):
        batch = super().sample()
        return MultiAgentBatch({"a": batch["a"]}, STEPS) if self.fragments < 3 else batch


def make(worker=None, **settings):
    return SyncReplayOptimizer(worker or RowWorker(), config={**SMALL, **settings})


def plain(state):
    """A state as restored from a checkpoint, except that arrays are lists."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state if isinstance(state, np.ndarray | list) else json.loads(json.dumps(state))


class TestUpdates:
    @pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
    def test_a_policy_without_minibatches_is_called_for_each_update(self, prioritized):
        optimizer = make(prioritized_replay=prioritized)
        steps(optimizer, 6)  # of ten steps
        policy = policy_of(optimizer)
        assert optimizer.num_updates == policy.updates == 30
        assert {len(batch) for batch in policy.learned} == {4}

    def test_a_policy_with_minibatches_is_called_once(self):
        optimizer = make()
        policy_of(optimizer).minibatch_size = 3
        steps(optimizer, 6)
        assert optimizer.num_updates == 30
        assert [len(batch) for batch in policy_of(optimizer).learned] == [5 * 3] * 6

    def test_errors_change_the_next_draw(self):
        # 64 draws include all 10 rows. The error of row k is k + 1; before the first draw it is 1.
        optimizer = make(prioritized_replay=True, train_batch_size=64, training_intensity=0.1)
        optimizer.step()
        buffer = optimizer.buffers["a"]
        numbers = buffer._rows.read("obs", np.arange(10))
        np.testing.assert_allclose(buffer._tree.get(np.arange(10)), (numbers + 1 + 1e-6) ** 0.6)

    def test_no_updates_count_while_nothing_can_be_drawn(self):
        class LongWindows(RowWorker):
            """Endless trajectories: a window of 25 steps is complete after the third fragment."""

            def sample(self):
                batch = super().sample()
                number = 10 * self.fragments - 10
                more = {"obs": np.arange(number, number + 10), "terminateds": np.zeros(10, bool)}
                columns = {**batch, **more, "trajectory_id": np.full(10, 1)}
                return Fragment(columns, [9], {"obs": np.array([number + 10])}, env_steps=10)

        worker = LongWindows()
        worker.policies["a"].config = ReplayFields(n_step=25)
        optimizer = make(worker)
        made = []
        for _ in range(5):
            optimizer.step()
            made.append(optimizer.num_updates)
        # Rows can be drawn only after steps 21 to 30, which make five updates due.
        assert made == [0, 0, 5, 10, 15]
        assert policy_of(optimizer).updates == 15

    def test_a_policy_with_late_rows_makes_only_later_updates(self):
        optimizer = make(Late(a=1, b=1))
        steps(optimizer, 5)
        assert optimizer.num_updates == policy_of(optimizer, "a").updates == 25
        assert policy_of(optimizer, "b").updates == 15

    @pytest.mark.parametrize("minibatch_size", [None, 4])
    def test_updates_are_not_repeated_after_another_policy_fails(self, minibatch_size):
        optimizer = make(RowWorker(a=1, b=1))
        a, b = policy_of(optimizer, "a"), policy_of(optimizer, "b")
        a.minibatch_size = minibatch_size
        optimizer.step()
        made = a.updates

        def fails(updates):
            raise ValueError("no")

        b.before = fails
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                optimizer.step()
        rows_of_a = sum(map(len, a.learned))
        assert rows_of_a == 20 * 4
        assert (optimizer.num_updates, b.updates) == (5, 5)
        state = plain(optimizer.get_state())
        assert state["ahead"] == {"a": 15, "b": 0}
        b.before = lambda updates: None
        optimizer.step()
        assert (optimizer.num_updates, b.updates, sum(map(len, a.learned))) == (25, 25, 25 * 4)
        assert plain(optimizer.get_state())["ahead"] == {"a": 0, "b": 0}
        assert made == (1 if minibatch_size else 5)

    def test_report(self):
        optimizer = make(Late(a=1, b=1))
        assert optimizer.report() == {"replay": {"rows": {"a": 0, "b": 0}, "num_updates": 0}}
        steps(optimizer, 3)
        assert optimizer.report() == {"replay": {"rows": {"a": 30, "b": 10}, "num_updates": 15}}


class TestRestored:
    settings = {"learning_starts": 20, "store_buffer_in_checkpoints": True}

    def used(self, count=10, **settings):
        optimizer = make(**{**self.settings, **settings})
        steps(optimizer, count)
        return optimizer

    @pytest.mark.parametrize("count", [0, 4])
    def test_without_the_buffer_waits_for_learning_starts(self, count):
        state = self.used(store_buffer_in_checkpoints=False).get_state()
        assert "buffers" not in state
        other = self.used(count)
        other.set_state(plain(state))
        assert len(other.buffers["a"]) == 0
        made = []
        for _ in range(4):
            other.step()
            made.append(other.num_updates)
        assert made == [40, 40, 45, 50]
        assert len(other.buffers["a"]) == 40

    def test_for_fewer_policies_and_for_more(self):
        workers = {ids: RowWorker(a=1, b=1) for ids in ("ab", "b")}
        both, one = (make(each, **learning(each, *ids), **self.settings) for ids, each in workers.items())
        steps(both, 4)
        one.set_state(plain(both.get_state()))
        assert len(one.buffers["b"]) == 40
        steps(one, 1)
        both.set_state(plain(one.get_state()))
        assert [len(both.buffers[policy_id]) for policy_id in ("a", "b")] == [0, 50]
        steps(both, 1)

    def test_states_that_do_not_fit_change_nothing(self):
        class Different(SyncReplayOptimizer):
            def buffers_of(self, policy: Policy):
                # The second buffer cannot restore the state, the first one can.
                frames = StackedFrames(2, path=("none",)) if policy.name == "b" else None
                return lambda size: UniformReplay(size, frames=frames)

        saved, worker = make(RowWorker(a=1, b=1), **self.settings), RowWorker(a=1, b=1)
        steps(saved, 4)
        worker.policies["b"].name = "b"
        other = Different(worker, config={**SMALL, **self.settings})
        other.buffers["a"].add(RowWorker(a=1, b=1).sample()["a"])
        with pytest.raises(CheckpointError, match="different number of stacked frames"):
            other.set_state(plain(saved.get_state()))
        assert len(other.buffers["a"]) == 10
        assert other.num_updates == 0

    def test_damaged_rows_of_a_buffer_on_the_device_change_nothing(self):
        optimizer = self.used(1)
        refused(CheckpointError, optimizer.set_state, {**plain(self.used(4).get_state()), "rows": np.ones(2)})
        assert len(optimizer.buffers["a"]) == 10

    def test_another_buffer_size(self):
        smaller = self.used(2, buffer_size=300)
        with pytest.raises(CheckpointError, match=r"different capacity(.|\n)*config keys: buffer_size"):
            smaller.set_state(plain(self.used().get_state()))
        assert len(smaller.buffers["a"]) == 20
        smaller.set_state(plain(self.used(store_buffer_in_checkpoints=False).get_state()))
        assert len(smaller.buffers["a"]) == 0
        steps(smaller, 4)
