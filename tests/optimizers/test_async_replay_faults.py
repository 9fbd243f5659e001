"""`AsyncReplayOptimizer` over stand-ins: shards, workers and updates that fail, and restored runs."""

from __future__ import annotations

import numpy as np
import pytest

from rollax.errors import CheckpointError, ConfigError, WorkerError
from tests.optimizers.replay_stand_ins import (
    due,
    numbers_in,
    policy_of,
    shards_of,
    steps,
)
from tests.optimizers.stand_ins import learner_threads


class TestFaults:
    def test_a_shard_that_dies_begins_anew_and_empty(self, make, caplog):
        optimizer, _ = make(2, num_replay_shards=2, training_intensity=0.5)
        steps(optimizer, 10)
        first, second = shards_of(optimizer)
        kept = len(numbers_in(first))
        optimizer.shards._actors.doomed.add(second)
        steps(optimizer, 10)
        *_, third = shards_of(optimizer)
        assert third not in (first, second)
        assert len(shards_of(optimizer)) == 3
        assert optimizer.shards._actors.killed == [second]
        assert len(numbers_in(first)) > kept
        assert {number // 10_000 for number in numbers_in(third)} == {2}
        health = optimizer.report()["replay"]["shards"]
        assert (health["healthy"], health["restarts"]) == (2, 1)
        assert health["last_errors"]["2"].startswith("WorkerError: The process of a replay shard is gone.")
        assert "Replay shard 2 failed (failure 1 in a row) and is restarted in 0 s." in caplog.text
        assert "transitions of replay shard 2 are lost" in caplog.text
        # The draws that were lost with it are made up for.
        steps(optimizer, 10)
        assert due(optimizer) - optimizer.num_updates < 40

    def test_draws_that_are_lost_with_it_are_asked_for_again(self, make):
        optimizer, _ = make(1, updates_per_draw=3, learning_starts=10_000)
        steps(optimizer, 5)
        optimizer.shards._actors.doomed.add(shards_of(optimizer)[0])
        optimizer._requested = 100
        assert optimizer.shards.request_draw(3)
        assert optimizer.shards.request_draw(3)
        optimizer._take_draws()
        assert optimizer._requested == 100 - 2 * 3
        optimizer._take_draws()
        assert optimizer._requested == 100 - 2 * 3

    def test_one_that_dies_now_and_then_is_started_anew_each_time(self, make):
        optimizer, _ = make(1, num_consecutive_worker_failures_tolerance=1, training_intensity=0.5)
        for deaths in range(1, 4):
            updates = optimizer.num_updates
            while optimizer.num_updates < updates + 20:
                optimizer.step()
            optimizer.shards._actors.doomed.add(shards_of(optimizer)[-1])
            while optimizer.shards.failures.restarts < deaths:
                optimizer.step()
        assert len(shards_of(optimizer)) == 4

    def test_errors_of_rows_that_are_lost_go_nowhere(self, make):
        optimizer, _ = make(1)
        steps(optimizer, 5)
        optimizer.shards.request_draw(1)
        (drawn,) = optimizer.shards.collect()[-1:]
        optimizer.shards._actors.doomed.add(shards_of(optimizer)[0])
        steps(optimizer, 5)
        (shard,) = optimizer.shards._live.values()
        before = optimizer.shards.pending
        optimizer.shards.give_errors(drawn, {"a": (np.array([0]), np.array([1e6]))})
        assert optimizer.shards.pending == before
        assert shard.state is not drawn.shard

    def test_one_that_hangs_is_replaced(self, make, monkeypatch):
        optimizer, _ = make(1, sample_timeout_s=0.1)
        steps(optimizer, 3)
        processes = optimizer.shards._actors
        (hung,) = shards_of(optimizer)
        of_shard: dict[int, object] = {}
        call, wait = processes.call, processes.wait
        processes.call = lambda worker, *rest: (
            of_shard.setdefault(reference := call(worker, *rest), worker) and reference
        )
        processes.wait = lambda references, *rest: [
            each for each in wait(references, *rest) if of_shard.get(each) is not hung
        ]
        while not optimizer.shards.failures.restarts:
            optimizer.step()
        assert processes.killed == [hung]
        assert "has hung" in optimizer.report()["replay"]["shards"]["last_errors"]["1"]
        steps(optimizer, 3)
        assert numbers_in(shards_of(optimizer)[-1])

    def test_one_that_always_dies_ends_the_run_with_its_error(self, make):
        optimizer, _ = make(1, num_consecutive_worker_failures_tolerance=2, delay_between_worker_restarts_s=0.0)
        processes = optimizer.shards._actors
        start = processes.start
        processes.start = lambda *place: processes.doomed.add(shard := start(*place)) or shard
        processes.doomed.add(shards_of(optimizer)[0])
        with pytest.raises(WorkerError, match="No replay shard is left") as raised:
            steps(optimizer, 50)
        assert isinstance(raised.value.__cause__, WorkerError)
        assert "(in replay shard 1)" in raised.value.__cause__.__notes__
        assert len(shards_of(optimizer)) == 3

    def test_without_restarts_its_error_is_raised(self, make):
        optimizer, _ = make(1, recreate_failed_workers=False)
        optimizer.shards._actors.doomed.add(shards_of(optimizer)[0])
        with pytest.raises(WorkerError, match="is gone"):
            steps(optimizer, 50)

    def test_what_a_shard_raises_is_raised(self, make):
        optimizer, _ = make(1, buffer_size=9)  # a fragment has ten rows
        with pytest.raises(ConfigError, match="does not fit into the replay buffer") as raised:
            steps(optimizer, 10)
        assert raised.value.__notes__ == ["(in replay shard 1)"]

    def test_what_the_learner_raises_reaches_the_caller_and_it_goes_on(self, make):
        def fail(updates):
            if updates == 2:
                raise ZeroDivisionError("the loss")

        optimizer, _ = make(2)
        policy_of(optimizer).before = fail
        with pytest.raises(ZeroDivisionError, match="the loss"):
            steps(optimizer, 100)
        policy_of(optimizer).before = lambda updates: None
        before = optimizer.env_steps
        steps(optimizer, 20)
        assert optimizer.env_steps > before
        assert len(learner_threads()) == 1

    def test_a_worker_that_fails_is_replaced(self, make):
        optimizer, _ = make(2, fails={(2, 3): ValueError("no oil")})
        while not optimizer.remote.failures.restarts:
            optimizer.step()
        steps(optimizer, 10)
        numbers = numbers_in(shards_of(optimizer)[0])
        assert {20_010, 20_020, 21_010} <= numbers.keys()


class TestState:
    def test_it_goes_on_with_what_was_kept(self, make):
        settings = {"num_replay_shards": 2, "store_buffer_in_checkpoints": True, "training_intensity": 0.5}
        optimizer, _ = make(2, **settings)
        steps(optimizer, 10)
        state = optimizer.get_state()
        other, _ = make(2, **settings)
        other.set_state(state)
        assert other.num_updates == optimizer.num_updates
        for ours, theirs in zip(shards_of(optimizer), shards_of(other), strict=True):
            assert numbers_in(ours) == numbers_in(theirs)
        other.env_steps = optimizer.env_steps
        steps(other, 5)
        assert other.num_updates > optimizer.num_updates
        assert other.shards.rows["a"] > optimizer.shards.rows["a"]

    def test_another_number_of_shards_is_refused(self, make):
        optimizer, _ = make(2, num_replay_shards=2, store_buffer_in_checkpoints=True)
        steps(optimizer, 3)
        other, _ = make(2, num_replay_shards=1, store_buffer_in_checkpoints=True)
        with pytest.raises(CheckpointError, match="another number of shards"):
            other.set_state(optimizer.get_state())

    def test_what_was_drawn_before_a_restore_is_forgotten(self, make):
        optimizer, _ = make(2, training_intensity=1.0)
        steps(optimizer, 5)
        state = optimizer.get_state()
        steps(optimizer, 5)
        optimizer.remote.forget()
        optimizer.set_state(state)
        assert optimizer.num_updates == state["num_updates"] == optimizer._requested
        assert not optimizer._waiting
        assert optimizer.shards.draws_under_way == 0
        assert not learner_threads()
        steps(optimizer, 5)

    def test_draws_that_were_lost_before_a_restore_are_forgotten_too(self, make):
        optimizer, _ = make(1, updates_per_draw=3)
        steps(optimizer, 3)
        optimizer.shards.request_draw(3)
        optimizer.shards._actors.doomed.add(shards_of(optimizer)[0])
        optimizer.shards.request_draw(3)
        optimizer.shards.collect()
        optimizer.set_state(optimizer.get_state())
        requested = optimizer._requested
        optimizer._take_draws()
        assert optimizer._requested == requested == optimizer.num_updates

    @pytest.mark.parametrize("used", [False, True])
    def test_without_what_was_kept_it_waits_for_as_many_steps_as_at_first(self, make, used):
        settings = {"num_replay_shards": 2, "training_intensity": 0.5, "learning_starts": 100}
        optimizer, _ = make(2, **settings)
        steps(optimizer, 15)
        state = optimizer.get_state()
        assert state["num_updates"] > 50
        other, _ = make(2, **settings)
        steps(other, 10 * used)
        other.remote.forget()
        other.set_state(state)
        assert sum(other.shards.rows.values()) == 0
        begun = other.env_steps
        while other.env_steps - begun < 80:
            other.step()
            assert sum(len(shard.buffers["a"]) for shard in shards_of(other)) == other.env_steps - begun
        assert other.num_updates == state["num_updates"]
        steps(other, 5)
        assert 0 < other.num_updates - state["num_updates"] <= (other.env_steps - begun - 100) * 0.5

    @pytest.mark.parametrize("wrong", ["shards", "capacity"])
    def test_what_is_refused_changes_nothing(self, make, wrong):
        settings = {"num_replay_shards": 2, "store_buffer_in_checkpoints": True, "training_intensity": 0.5}
        saved, _ = make(3, **settings)
        steps(saved, 5)
        state = saved.get_state()
        other, _ = make(3, **settings)
        steps(other, 9)
        if wrong == "shards":
            state["shards"].pop()
        else:  # only of the second one
            state["shards"][1] = state["shards"][0]
        before, updates = [numbers_in(shard) for shard in shards_of(other)], other.num_updates
        other.remote.forget()  # as when the workers were given what they had
        with pytest.raises(CheckpointError, match=f"another (number of )?{wrong}"):
            other.set_state(state)
        after = [numbers_in(shard) for shard in shards_of(other)]
        assert [kept.keys() for kept in before] == [kept.keys() for kept in after]
        steps(other, 5)
        assert other.num_updates > updates

    def test_stop_releases_all(self, make):
        optimizer, _ = make(2, num_replay_shards=2)
        steps(optimizer, 3)
        assert len(learner_threads()) == 1
        optimizer.stop()
        assert not learner_threads()
        assert optimizer.shards._actors.killed == shards_of(optimizer)
        optimizer.stop()
