"""`RemoteWorkers` with a simulated clock: the requests to workers and their replies."""

from typing import Any

import numpy as np

from rollax.errors import EnvError, WorkerError
from rollax.processes.actors import ProcessLostError
from rollax.processes.failure_rules import FailureRules
from rollax.rollout.messages import Update
from rollax.rollout.remote_workers import RemoteWorkers
from tests.env.refused import raised, refused
from tests.processes.stand_in import NEVER, SAMPLE, BrokenError, Does, all_replies, ask, update, value


class TestRequests:
    def test_replies_come_in_the_order_of_the_requests_of_a_worker(self, pool, clock):
        # Worker 1 answers at 1, 2 and 3 s, worker 2 at 5 and 6 s.
        workers, _ = pool(script={(2, 0, SAMPLE): [Does(5)]})
        assert workers.indices == [1, 2]
        ask(workers, 1, 2, 1, 1, 2)
        assert workers.requests_in_flight == 5
        assert workers.collect() == [value(1, 0, 0)]
        assert clock.now == 1001
        clock.now += 1.5
        assert workers.collect() == [value(1, 0, 1)]
        clock.now = 1005.0
        assert sorted(workers.collect()) == [value(1, 0, 2), value(2, 0, 0)]
        assert workers.requests_in_flight == 1
        assert workers.collect() == [value(2, 0, 1)]
        assert workers.collect() == []

    def test_waits_at_most_for_the_timeout(self, pool, clock):
        workers, _ = pool(script={(1, 0, SAMPLE): [Does(5)]})
        workers.request(1, SAMPLE)
        assert workers.collect(0.25) == []
        assert clock.now == 1000.25
        assert workers.collect(0.0) == []
        assert workers.collect(60) == [value(1, 0, 0)]
        assert clock.now == 1005

    def test_a_worker_is_sent_each_update_once(self, pool):
        workers, stand_in = pool()
        workers.request(1, SAMPLE)
        workers.publish(update(1))
        ask(workers, 1, 1, 2)
        workers.publish(update(4))
        workers.publish(update(5))
        for index in (1, 1, 2, 2):
            workers.request(index, "sample_gradients")
        first, second, last = (("stored", number) for number in range(3))
        assert stand_in.asked(1) == [(0, ()), (0, (first,)), (0, ())]
        assert stand_in.asked(2) == [(0, (first,))]
        assert stand_in.asked(1, "sample_gradients") == stand_in.asked(2, "sample_gradients") == [(0, (last,)), (0, ())]
        assert second not in [argument for call in stand_in.calls for argument in call.arguments]

    def test_an_update_with_the_version_of_an_earlier_one_is_sent_too(self, pool):
        workers, stand_in = pool(1)
        for _ in range(2):  # a restore in between reset the version
            workers.publish(update(4))
            workers.request(1, SAMPLE)
        assert stand_in.asked(1) == [(0, (("stored", 0),)), (0, (("stored", 1),))]

    def test_an_update_is_stored_once_for_all_workers(self, pool):
        weights = {"a": {"w": np.zeros(2_500_000, np.float32)}}  # 10 MB
        workers, stand_in = pool(8)
        for version in (1, 2, 3):
            workers.publish(Update(version, 0, weights, {}))
            ask(workers, *workers.indices)
            all_replies(workers)
        assert [put.version for put in stand_in.puts] == [1, 2, 3]
        sent = [argument for call in stand_in.calls for argument in call.arguments]
        assert sent == [("stored", number) for number in range(3) for _ in range(8)]

    def test_forgotten_requests_return_nothing(self, pool):
        broken = Does(0.5, BrokenError("x"))
        workers, stand_in = pool(3, script={(3, number, SAMPLE): [broken] for number in (0, 1)})
        ask(workers, 1, 1, 2, 3, 3)
        assert workers.collect(0.9) == []
        assert len(workers) - workers.healthy == 0
        assert workers.call_each("get_state", {2: ()}) == {2: ("get_state", 2, 0, 0)}
        # Worker 2 and one request of worker 1 are answered, one of worker 1's is not, and worker 3 has failed again: it
        # has two requests to answer after its restart.
        assert len(workers) - workers.healthy == 1
        assert workers.requests_in_flight == 5
        workers.forget()
        assert workers.requests_in_flight == 0
        assert workers.collect() == []
        workers.request(2, SAMPLE)
        assert workers.collect() == [value(2, 0, 1)]
        assert len(stand_in.asked(1)) == 2


class TestCalls:
    def test_functions_of_stopped_workers_are_refused(self, pool):
        workers, _ = pool(2)
        workers.stop()
        refused(WorkerError, workers.apply, repr, says="No rollout worker...they have been stopped...before stop")

    def test_call_all(self, pool):
        workers, stand_in = pool(3, script={(1, 0, "apply"): [Does(7)]})
        assert workers.call_all("apply", "f") == {index: ("apply", index, 0, 0) for index in (1, 2, 3)}
        assert [call.arguments for call in stand_in.calls] == [("f",)] * 3

    def test_call_each_has_arguments_per_worker(self, pool):
        workers, stand_in = pool(2)
        assert [*workers.call_each("set_state", {2: ("b",), 3: ("nobody",)})] == [2]
        assert stand_in.asked(2, "set_state") == [(0, ("b",))]
        assert stand_in.asked(1, "set_state") == []

    def test_replies_that_arrive_meanwhile_are_kept(self, pool):
        workers, _ = pool()
        ask(workers, 1, 2)
        workers.call_all("get_state")
        assert workers.requests_in_flight == 2
        assert workers.collect() == [value(1, 0, 0), value(2, 0, 0)]
        assert workers.requests_in_flight == 0

    def test_a_failed_worker_is_left_out_and_restarted(self, pool):
        workers, stand_in = pool(script={(2, 0, "get_state"): [Does(1, BrokenError("x"))]})
        ask(workers, 2, 2, 1)
        assert workers.call_all("get_state") == {1: ("get_state", 1, 0, 0)}
        # Its earlier replies are kept, and the call is not repeated.
        assert sorted(all_replies(workers)) == [value(1, 0, 0), value(2, 0, 0), value(2, 0, 1)]
        assert stand_in.asked(2, "get_state") == [(0, ())]
        workers.request(2, SAMPLE)
        assert workers.collect() == [value(2, 1, 0)]

    def test_without_restarts_its_error_is_raised(self, pool):
        workers, _ = pool(rules=FailureRules(), script={(2, 0, "get_state"): [Does(1, BrokenError("x"))]})
        raised(BrokenError, workers.call_all, "get_state", says="x")

    def test_an_error_of_the_callers_function_is_not_a_failure_of_the_worker(self, pool):
        script = {(2, 0, "apply"): [Does(1, BrokenError("x"))], (3, 0, "apply"): [Does(1, ProcessLostError("gone"))]}
        workers, stand_in = pool(3, script=script)
        raised(BrokenError, workers.call_all, "apply", raises=True, says="x")
        assert stand_in.killed == [(3, 0)]
        assert stand_in.generations == {1: 0, 2: 0, 3: 1}

    def test_a_worker_that_hangs(self, pool, clock):
        rules = FailureRules(restart=True, timeout_s=10.0)
        workers, stand_in = pool(rules=rules, script={(1, 0, "get_state"): [Does(NEVER)]})
        assert workers.call_all("get_state") == {2: ("get_state", 2, 0, 0)}
        assert clock.now == 1010
        assert stand_in.killed == [(1, 0)]

    def test_the_error_for_a_hanging_worker_names_keys_of_each_algorithm(self, pool):
        workers, _ = pool(rules=FailureRules(timeout_s=10.0), script={(1, 0, "perform"): [Does(NEVER)]})
        workers.request(1, "perform")
        refused(WorkerError, workers.collect, says="rollout_fragment_length...num_envs_per_worker")

    def test_a_worker_with_earlier_requests_has_not_hung(self, pool, clock):
        workers, _ = pool(rules=FailureRules(timeout_s=10.0), script={(1, 0, SAMPLE): [Does(8)] * 3})
        ask(workers, *[1] * 3)
        assert [*workers.call_all("get_state")] == [1, 2]
        assert clock.now == 1025

    def test_a_starting_worker_has_not_hung(self, pool, clock):
        script = {(1, 0, SAMPLE): [Does(1, BrokenError())], (1, 1, "make"): [Does(50)]}
        workers, _ = pool(rules=FailureRules(restart=True, timeout_s=10.0), script=script, makes=True)
        workers.make_all()
        workers.request(1, SAMPLE)
        workers.collect(2.0)
        assert [*workers.call_all("get_state")] == [1, 2]
        assert workers.failures.restarts == 1

    def test_due_restarts_are_made_meanwhile(self, pool, clock):
        script = {(1, generation, SAMPLE): [Does(1, BrokenError())] for generation in range(2)}
        workers, stand_in = pool(script={**script, (2, 0, "get_state"): [Does(100)]})
        workers.request(1, SAMPLE)
        workers.collect(2.5)
        assert [*workers.call_all("get_state")] == [2]
        assert [when for index, when in stand_in.started if index == 1] == [1000, 1001, 1004]
        assert workers.collect() == [value(1, 2, 0)]


class TestMaking:
    def test_all_are_made(self, pool, clock):
        workers, _ = pool(3, script={(2, 0, "make"): [Does(30)]}, makes=True)
        assert workers.healthy == 0
        workers.make_all()
        assert workers.healthy == 3
        assert clock.now == 1030
        assert workers.requests_in_flight == 0

    def test_an_error_stops_all_at_once(self, pool, clock):
        error = EnvError("no display")
        script = {(1, 0, "make"): [Does(NEVER)], (3, 0, "make"): [Does(2, error)]}
        workers, stand_in = pool(3, script=script, makes=True)
        found = raised(EnvError, workers.make_all, says="no display")
        assert found is error
        assert found.__notes__ == ["(in rollout worker 3)"]
        assert clock.now == 1002 + 1  # worker 2 is already made, and takes a second to close its environments
        assert sorted(stand_in.killed) == [(1, 0), (2, 0), (3, 0)]
        assert [call.index for call in stand_in.calls if call.method == "stop"] == [2]
        assert workers.indices == []

    def test_a_worker_whose_process_dies_is_recreated(self, pool, clock):
        # Its process dies after a second each time: it is recreated at once at 1001, and the next time, 1002, after 3
        # s.
        script = {(2, generation, "make"): [Does(1, ProcessLostError("gone"))] for generation in range(2)}
        workers, stand_in = pool(2, FailureRules(restart=True, delay_s=3.0), script, makes=True)
        workers.make_all()
        assert [when for index, when in stand_in.started if index == 2] == [1000, 1001, 1005]
        assert workers.healthy == 2

    def test_a_worker_whose_process_dies_without_restarts(self, pool, clock):
        gone = Does(1, ProcessLostError("killed by 9"))
        workers, _ = pool(2, FailureRules(), {(2, 0, "make"): [gone]}, makes=True)
        refused(WorkerError, workers.make_all, says="rollout worker is gone...worker 2, make()...killed by 9")
        assert workers.indices == []

    def test_a_worker_whose_process_always_dies(self, pool, clock, caplog):
        def script():
            return {(2, generation, "make"): [Does(1, ProcessLostError("gone"))] for generation in range(2)}

        workers, stand_in = pool(2, FailureRules(restart=True, tolerance=1), script(), makes=True)
        refused(WorkerError, workers.make_all, says="rollout worker is gone...worker 2, make()")
        assert stand_in.killed == [(2, 0), (2, 1), (1, 0)]
        workers, _ = pool(2, FailureRules(restart=True, tolerance=1, ignore=True), script(), makes=True)
        workers.make_all()
        assert workers.indices == [1]

    def test_a_worker_that_does_not_start(self, pool, clock):
        rules = FailureRules(restart=True, start_timeout_s=60.0)
        workers, stand_in = pool(2, rules, {(2, 0, "make"): [Does(NEVER)]}, makes=True)
        refused(WorkerError, workers.make_all, says="did not start in time...worker 2...no answer for 60 s")
        assert len(stand_in.killed) == 2


class TestStop:
    def test_environments_are_closed_and_processes_ended(self, pool, clock):
        workers, stand_in = pool(3, script={(2, 0, "stop"): [Does(NEVER)], (3, 0, "stop"): [Does(1, BrokenError())]})
        workers.request(1, SAMPLE)
        workers.stop()
        assert clock.now == 1005  # it waits for at most 5 s
        assert [call.index for call in stand_in.calls if call.method == "stop"] == [1, 2, 3]
        assert stand_in.killed == [(1, 0), (2, 0), (3, 0)]
        workers.stop()
        assert (len(workers), workers.requests_in_flight, workers.collect()) == (0, 0, [])

    def test_stop_after_ray_was_shut_down(self, pool, monkeypatch):
        def gone(*_: Any) -> Any:
            raise WorkerError("Ray was shut down under the workers.")

        workers, stand_in = pool()
        monkeypatch.setattr(stand_in, "call", gone)
        workers.stop()
        assert len(stand_in.killed) == 2


def test_without_workers():
    workers = RemoteWorkers.of([])
    assert not workers
    assert (len(workers), workers.indices, workers.healthy, workers.collect()) == (0, [], 0, [])
    workers.stop()
    assert RemoteWorkers.of(workers) is workers
