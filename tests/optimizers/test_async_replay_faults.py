"""`AsyncReplayOptimizer` with stand-ins: failures of shards, workers and updates, and restored runs."""

from dataclasses import replace

import numpy as np
import pytest

from rollax.errors import CheckpointError, ConfigError, WorkerError
from tests.optimizers.replay_stand_ins import due, numbers_in, shards_of
from tests.optimizers.stand_ins import learner_threads, policy_of, steps


class TestFaults:
    def test_a_failed_shard_is_restarted_empty(self, make, caplog):
        optimizer, _ = make(2, num_replay_shards=2, training_intensity=0.5)
        steps(optimizer, 10)
        first, second = shards_of(optimizer)
        kept = len(numbers_in(first))
        optimizer.shards._actors.failing.add(second)
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
        # Lost draws are requested again.
        steps(optimizer, 10)
        assert due(optimizer) - optimizer.num_updates < 40

    def test_lost_draws_are_requested_again(self, make):
        optimizer, _ = make(1, updates_per_draw=3, learning_starts=10_000)
        steps(optimizer, 5)
        optimizer.shards._actors.failing.add(shards_of(optimizer)[0])
        optimizer._requested = 100
        assert optimizer.shards.request_draw(3)
        assert optimizer.shards.request_draw(3)
        optimizer._take_draws()
        assert optimizer._requested == 100 - 2 * 3
        optimizer._take_draws()
        assert optimizer._requested == 100 - 2 * 3

    def test_a_shard_that_fails_repeatedly_is_restarted_each_time(self, make):
        optimizer, _ = make(1, num_consecutive_worker_failures_tolerance=1, training_intensity=0.5)
        for deaths in range(1, 4):
            updates = optimizer.num_updates
            while optimizer.num_updates < updates + 20:
                optimizer.step()
            optimizer.shards._actors.failing.add(shards_of(optimizer)[-1])
            while optimizer.shards.failures.restarts < deaths:
                optimizer.step()
        assert len(shards_of(optimizer)) == 4

    def test_errors_of_lost_rows_are_dropped(self, make):
        optimizer, _ = make(1)
        steps(optimizer, 5)
        optimizer.shards.request_draw(1)
        (drawn,) = optimizer.shards.collect()[-1:]
        optimizer.shards._actors.failing.add(shards_of(optimizer)[0])
        steps(optimizer, 5)
        (shard,) = optimizer.shards._live.values()
        before = optimizer.shards.pending
        optimizer.shards.give_errors(drawn, {"a": (np.array([0]), np.array([1e6]))})
        assert optimizer.shards.pending == before
        assert shard.state is not drawn.shard

    def test_a_hanging_shard_is_replaced(self, make, monkeypatch):
        optimizer, _ = make(1)
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
        failures = optimizer.shards.failures
        rules, failures.rules = failures.rules, replace(failures.rules, timeout_s=0.1)
        while not failures.restarts:
            optimizer.step()
        failures.rules = rules
        assert processes.killed == [hung]
        assert "has hung" in optimizer.report()["replay"]["shards"]["last_errors"]["1"]
        steps(optimizer, 3)
        assert numbers_in(shards_of(optimizer)[-1])

    def test_a_shard_that_always_fails_ends_the_run_with_its_error(self, make):
        optimizer, _ = make(1, num_consecutive_worker_failures_tolerance=2, delay_between_worker_restarts_s=0.0)
        processes = optimizer.shards._actors
        start = processes.start
        processes.start = lambda *place: processes.failing.add(shard := start(*place)) or shard
        processes.failing.add(shards_of(optimizer)[0])
        with pytest.raises(WorkerError, match="No replay shard is left") as raised:
            steps(optimizer, 50)
        assert isinstance(raised.value.__cause__, WorkerError)
        assert "(in replay shard 1)" in raised.value.__cause__.__notes__
        assert len(shards_of(optimizer)) == 3

    def test_without_restarts_the_error_is_raised(self, make):
        optimizer, _ = make(1, recreate_failed_workers=False)
        optimizer.shards._actors.failing.add(shards_of(optimizer)[0])
        with pytest.raises(WorkerError, match="is gone"):
            steps(optimizer, 50)

    def test_errors_in_a_shard_are_raised(self, make):
        optimizer, _ = make(1, buffer_size=9)  # a fragment has ten rows
        with pytest.raises(ConfigError, match="does not fit into the replay buffer") as raised:
            steps(optimizer, 10)
        assert raised.value.__notes__ == ["(in replay shard 1)"]

    def test_errors_of_the_learner_are_raised_and_learning_continues(self, make):
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

    def test_a_failed_worker_is_replaced(self, make):
        optimizer, _ = make(2, fails={(2, 3): ValueError("no oil")})
        while not optimizer.remote.failures.restarts:
            optimizer.step()
        steps(optimizer, 10)
        numbers = numbers_in(shards_of(optimizer)[0])
        assert {20_010, 20_020, 21_010} <= numbers.keys()


class TestState:
    def test_restoring_with_the_buffer(self, make):
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

    def test_draws_before_a_restore_are_dropped(self, make):
        optimizer, _ = make(2, training_intensity=1.0)
        steps(optimizer, 5)
        state = optimizer.get_state()
        steps(optimizer, 5)
        optimizer.remote.forget()
        optimizer.set_state(state)
        assert optimizer.num_updates == state["num_updates"] == optimizer._requested
        assert not optimizer._waiting
        assert optimizer.shards.draws_in_flight == 0
        assert not learner_threads()
        steps(optimizer, 5)

    def test_lost_draws_before_a_restore_are_dropped(self, make):
        optimizer, _ = make(1, updates_per_draw=3)
        steps(optimizer, 3)
        optimizer.shards.request_draw(3)
        optimizer.shards._actors.failing.add(shards_of(optimizer)[0])
        optimizer.shards.request_draw(3)
        optimizer.shards.collect()
        optimizer.set_state(optimizer.get_state())
        requested = optimizer._requested
        optimizer._take_draws()
        assert optimizer._requested == requested == optimizer.num_updates

    @pytest.mark.parametrize("used", [False, True])
    def test_without_the_buffer_learning_waits_for_learning_starts(self, make, used):
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
        steps_before = other.env_steps
        while other.env_steps - steps_before < 80:
            other.step()
            assert sum(len(shard.buffers["a"]) for shard in shards_of(other)) == other.env_steps - steps_before
        assert other.num_updates == state["num_updates"]
        steps(other, 5)
        assert 0 < other.num_updates - state["num_updates"] <= (other.env_steps - steps_before - 100) * 0.5

    @pytest.mark.parametrize("wrong", ["shards", "capacity"])
    def test_refused_states_change_nothing(self, make, wrong):
        settings = {"num_replay_shards": 2, "store_buffer_in_checkpoints": True, "training_intensity": 0.5}
        saved, _ = make(3, **settings)
        steps(saved, 5)
        state = saved.get_state()
        other, _ = make(3, **settings)
        steps(other, 9)
        if wrong == "shards":
            state["shards"].pop()
        else:  # of the second one only
            state["shards"][1] = state["shards"][0]
        before, updates = [numbers_in(shard) for shard in shards_of(other)], other.num_updates
        other.remote.forget()  # as if the workers had just received their state
        with pytest.raises(CheckpointError, match=f"different (number of )?(replay )?{wrong}"):
            other.set_state(state)
        after = [numbers_in(shard) for shard in shards_of(other)]
        assert [kept.keys() for kept in before] == [kept.keys() for kept in after]
        steps(other, 5)
        assert other.num_updates > updates

    def test_stop_ends_all_shards(self, make):
        optimizer, _ = make(2, num_replay_shards=2)
        steps(optimizer, 3)
        assert len(learner_threads()) == 1
        optimizer.stop()
        assert not learner_threads()
        assert optimizer.shards._actors.killed == shards_of(optimizer)
        optimizer.stop()
