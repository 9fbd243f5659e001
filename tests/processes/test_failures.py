"""Failures and restarts of workers, with a simulated clock."""

import logging

import numpy as np
import pytest

from rollax.errors import EnvError, WorkerError
from rollax.processes.actor_pool import ActorPool
from rollax.processes.actors import LocalActors, ProcessLostError
from rollax.processes.failure_rules import FailureRules, Failures
from tests.env.refused import raised, refused
from tests.interrupting import Interrupts
from tests.processes.stand_in import NEVER, SAMPLE, BrokenError, Does, all_replies, ask, update, value


def test_the_cause_of_unavailable_workers_is_the_newest_error():
    failures = Failures(FailureRules(ignore=True), "worker", "")
    errors = [BrokenError(text) for text in ("first", "second", "third")]
    for index, error in zip((1, 2, 1), errors, strict=True):
        failures.failed(index, error)
    assert failures.unavailable().__cause__ is errors[2]


@pytest.mark.parametrize("error", [BrokenError, ProcessLostError])
def test_an_interrupt_at_any_line_leaves_no_actor_out(error):
    class FailsOnce:
        def __init__(self, index, restarts):
            self.fails = restarts == 0

        def make(self):
            return True

        def work(self):
            if self.fails:
                raise error("gone")
            return "done"

    interrupts, line, interrupted = Interrupts("processes"), 0, True
    while interrupted:
        failures = Failures(FailureRules(restart=True, delay_s=0.0), "actor")
        pool = ActorPool(LocalActors(FailsOnce), range(2), failures, makes=True)
        pool.make_all()
        pool.send(1, "work")
        interrupted = interrupts.at(line, pool.ready)
        while pool.call_all("work") != {0: "done", 1: "done"}:
            assert pool.indices == [0, 1], interrupts.place
        line += 1
    assert line > 1


class TestRestarts:
    def test_a_restarted_worker_gets_its_index_the_last_update_and_its_requests(self, pool, caplog):
        # Worker 2 raises in the second of three requests: it answers the first, and the other two are repeated.
        workers, stand_in = pool(script={(2, 0, SAMPLE): [Does(), Does(1, BrokenError("no oil"))]}, makes=True)
        workers.make_all()
        workers.publish(update(1))
        ask(workers, 2, 2, 2, 1)
        workers.publish(update(2))
        assert sorted(all_replies(workers)) == [value(1, 0, 0), value(2, 0, 0), value(2, 1, 0), value(2, 1, 1)]
        assert stand_in.generations == {1: 0, 2: 1}
        assert stand_in.killed == [(2, 0)]
        old, new = ("stored", 0), ("stored", 1)
        assert stand_in.asked(2) == [(0, (old,)), (0, ()), (0, ()), (1, (new,)), (1, ())]
        assert [call.method for call in stand_in.calls if call[:2] == (2, 1)] == ["make", SAMPLE, SAMPLE]
        assert workers.failures.restarts == 1
        assert [*workers.failures.last] == [2]
        assert "Rollout worker 2 failed (failure 1 in a row) and is restarted in 0 s." in caplog.text
        assert "BrokenError: no oil" in caplog.text

    def test_without_a_published_update_none_is_sent(self, pool):
        workers, stand_in = pool(script={(1, 0, SAMPLE): [Does(1, BrokenError())]})
        workers.request(1, SAMPLE)
        assert workers.collect() == [value(1, 1, 0)]
        assert stand_in.asked(1) == [(0, ()), (1, ())]

    def test_a_request_while_it_waits_for_its_restart(self, pool):
        script = {(1, generation, SAMPLE): [Does(1, BrokenError())] for generation in range(2)}
        workers, stand_in = pool(script=script)
        workers.request(1, SAMPLE)
        assert workers.collect(2.5) == []  # two failures; the second restart waits until 1004
        workers.publish(update(7))
        workers.request(1, "sample_gradients")
        assert (workers.requests_in_flight, workers.healthy, len(workers), workers.indices) == (2, 1, 2, [1, 2])
        assert workers.collect() == [value(1, 2, 0)]
        assert workers.collect() == [value(1, 2, 0, "sample_gradients")]
        assert stand_in.asked(1)[2:] == [(2, (("stored", 0),))]

    @pytest.mark.parametrize("makes", [False, True])
    def test_delays_of_restarts_double(self, pool, makes, clock):
        # Every attempt fails 1 s after its request (or start). Restarts follow at once, then after 2, 4 and 8 s.
        method = "make" if makes else SAMPLE
        script = {(1, generation, method): [Does(1, BrokenError())] for generation in range(1 if makes else 0, 5)}
        if makes:
            script[1, 0, SAMPLE] = [Does(1, BrokenError())]
        workers, stand_in = pool(2, FailureRules(restart=True, tolerance=4, delay_s=2.0), script, makes=makes)
        workers.make_all()
        begun = clock.now
        workers.request(1, SAMPLE)
        assert workers.collect() == []  # not restarted again
        assert [when - begun for index, when in stand_in.started if index == 1][1:] == [1, 4, 9, 18]
        assert clock.now - begun == 19
        assert workers.indices == [2]

    def test_delays_of_restarts_are_at_most_a_minute(self, pool, clock):
        script = {(1, generation, SAMPLE): [Does(0, BrokenError())] for generation in range(8)}
        workers, stand_in = pool(1, FailureRules(restart=True, tolerance=9, delay_s=8.0), script)
        workers.request(1, SAMPLE)
        assert workers.collect() == [value(1, 8, 0)]
        assert np.diff([when for _, when in stand_in.started]).tolist() == [0, 8, 16, 32, 60, 60, 60, 60]

    def test_a_reply_resets_the_count_of_failures(self, pool, clock):
        script = {(1, generation, SAMPLE): [Does(), Does(1, BrokenError())] for generation in range(6)}
        workers, _ = pool(1, FailureRules(restart=True, tolerance=1, delay_s=100.0), script)
        ask(workers, *[1] * 7)
        assert [reply.value[2] for reply in all_replies(workers)] == [*range(7)]
        assert workers.failures.restarts == 6
        assert clock.now == 1013

    def test_the_total_number_of_restarts_is_limited(self, pool, caplog):
        script = {(index, 0, SAMPLE): [Does(index, BrokenError(f"of {index}"))] for index in (1, 2, 3)}
        workers, stand_in = pool(3, FailureRules(restart=True, max_restarts=2), script)
        ask(workers, 1, 2, 3)
        assert all_replies(workers) == [value(1, 1, 0), value(2, 1, 0)]
        assert workers.indices == [1, 2]
        assert "Rollout worker 3 failed (failure 1 in a row) and is not restarted; there were 2 restarts" in caplog.text
        assert stand_in.killed == [(1, 0), (2, 0), (3, 0)]

    def test_two_requests_that_fail_together_are_one_failure(self, pool, clock):
        script = {(1, 0, SAMPLE): [Does(1, BrokenError("a")), Does(0, BrokenError("b"))]}
        workers, stand_in = pool(script=script)
        ask(workers, *[1] * 3)
        assert workers.collect(1.0) == []
        assert workers.failures.restarts == 1
        assert stand_in.killed == [(1, 0)]
        assert str(workers.failures.last[1]) == "a"
        assert all_replies(workers) == [value(1, 1, number) for number in range(3)]

    def test_replies_of_a_failed_worker_are_dropped(self, pool, clock):
        # It failed in its first request; the reply to the second one is ready at the same time.
        workers, _ = pool(script={(1, 0, SAMPLE): [Does(1, BrokenError()), Does(0)]})
        ask(workers, 1, 1)
        clock.now += 3
        assert workers.collect(0.0) == []
        assert workers.requests_in_flight == 2
        assert workers.collect() == [value(1, 1, 0)]
        assert workers.collect() == [value(1, 1, 1)]

    def test_replies_beside_a_raised_error_are_kept(self, pool, clock):
        workers, _ = pool(3, FailureRules(), {(2, 0, SAMPLE): [Does(1, BrokenError())]})
        ask(workers, 1, 2, 3)
        clock.now += 1
        with pytest.raises(BrokenError):
            workers.collect()
        assert workers.requests_in_flight == 2
        assert sorted(workers.collect()) == [value(1, 0, 0), value(3, 0, 0)]


class TestWithoutRestarts:
    def test_the_original_error_is_raised(self, pool):
        error = EnvError("A wheel came off.")
        error.__cause__ = ValueError("as raised in another process")
        workers, stand_in = pool(rules=FailureRules(), script={(2, 0, SAMPLE): [Does(1, error)]})
        workers.request(2, SAMPLE)
        found = raised(EnvError, workers.collect, says="A wheel came off")
        assert found is error
        assert found.__notes__ == ["(in rollout worker 2)"]
        assert str(found.__cause__) == "as raised in another process"
        assert stand_in.killed == [(2, 0)]

    def test_ignored_failures_leave_out_the_worker(self, pool, caplog):
        caplog.set_level(logging.ERROR)
        workers, _ = pool(rules=FailureRules(ignore=True), script={(2, 0, SAMPLE): [Does(1, BrokenError("x"))]})
        ask(workers, 1, 2, 2)
        assert workers.collect() == [value(1, 0, 0)]
        assert workers.requests_in_flight == 0
        assert (workers.indices, len(workers), workers.healthy) == ([1], 1, 1)
        assert "Rollout worker 2 failed (failure 1 in a row) and is not restarted" in caplog.text
        assert "BrokenError: x" in caplog.text
        workers.request(2, SAMPLE)  # requests to a missing worker are ignored
        assert workers.requests_in_flight == 0
        assert workers.call_all("get_state") == {1: ("get_state", 1, 0, 0)}

    @pytest.mark.parametrize("rules", [FailureRules(ignore=True), FailureRules(restart=True, max_restarts=0)])
    def test_no_worker_is_left(self, pool, rules):
        last = BrokenError("of 1")
        script = {(1, 0, SAMPLE): [Does(2, last)], (2, 0, SAMPLE): [Does(1, BrokenError("of 2"))]}
        workers, _ = pool(2, rules, script)
        ask(workers, 1, 2)
        says = "No rollout worker is left...1: BrokenError: of 1; 2: BrokenError: of 2"
        assert refused(WorkerError, workers.collect, says=says).__cause__ is last
        assert workers.indices == []
        assert workers
        assert refused(WorkerError, workers.publish, update(1), says="No rollout worker is left").__cause__ is last

    def test_the_parts_of_an_error_are_in_the_last_error(self, pool):
        error = EnvError("An odd shape.", where="reset", got="(3,)", expected="(4,)", fix="return it")
        workers, _ = pool(1, FailureRules(ignore=True), {(1, 0, SAMPLE): [Does(1, error)]})
        workers.request(1, SAMPLE)
        says = "1: EnvError: An odd shape. (where: reset; got: (3,); expected: (4,))"
        refused(WorkerError, workers.collect, says=says)


class TestHung:
    RULES = FailureRules(restart=True, timeout_s=10.0, start_timeout_s=60.0)

    def test_no_answer_in_time(self, pool, clock):
        workers, stand_in = pool(rules=self.RULES, script={(1, 0, SAMPLE): [Does(9), Does(9), Does(NEVER)]})
        ask(workers, *[1] * 4)
        assert workers.collect() == [value(1, 0, 0)]
        assert workers.collect() == [value(1, 0, 1)]
        assert clock.now == 1018  # 9 s each: the timeout counts from answer to answer
        assert workers.collect() == [value(1, 1, 0)]
        _, when = stand_in.started[-1]
        assert when == 1028
        assert isinstance(workers.failures.last[1], WorkerError)
        message = str(workers.failures.last[1])
        assert message.startswith("A rollout worker has hung.\n  where:    rollout worker 1, sample_fragment()\n")
        assert "got:      no answer for 10 s\n  expected: an answer within 10 s\n" in message
        assert "with ARS and ES also for an episode that never ends" in message
        assert stand_in.killed == [(1, 0)]
        assert workers.collect() == [value(1, 1, 1)]

    def test_noticed_while_others_answer(self, pool, clock):
        workers, stand_in = pool(rules=self.RULES, script={(1, 0, SAMPLE): [Does(NEVER)]})
        ask(workers, 1, 2)
        while clock.now < 1011:
            for reply in workers.collect():
                workers.request(reply.index, SAMPLE)
        assert stand_in.killed == [(1, 0)]

    def test_an_idle_worker_has_not_hung(self, pool, clock):
        workers, stand_in = pool(rules=self.RULES)
        workers.request(1, SAMPLE)
        workers.collect()
        clock.now += 100
        workers.request(1, SAMPLE)
        assert workers.collect() == [value(1, 0, 1)]
        assert stand_in.killed == []

    def test_replies_that_are_collected_late_are_in_time(self, pool, clock):
        workers, stand_in = pool(rules=self.RULES, script={(2, 0, SAMPLE): [Does(), Does(98)]})
        ask(workers, 1, 2, 1, 2)
        clock.now += 90  # the driver evaluates
        assert sorted(workers.collect(0.0)) == [value(1, 0, 0), value(1, 0, 1), value(2, 0, 0)]
        assert stand_in.killed == []
        assert workers.collect() == [value(2, 0, 1)]

    def test_starting_has_its_own_timeout(self, pool, clock):
        script = {(1, 0, SAMPLE): [Does(1, BrokenError())], (1, 1, "make"): [Does(59)], (1, 2, "make"): [Does(NEVER)]}
        script[1, 1, SAMPLE] = [Does(NEVER)]
        workers, stand_in = pool(rules=self.RULES, script=script, makes=True)
        workers.make_all()
        workers.request(1, SAMPLE)
        found = workers.collect()
        # 1002 raised; made until 1061; hung until 1071; restarted a second later, and 62 s later again
        assert found == [value(1, 3, 0)]
        starts = [when for index, when in stand_in.started if index == 1]
        assert starts[:2] == [1000, 1002]
        assert starts[2:] == [1072, 1134]
        assert "did not start in time" in str(workers.failures.last[1])

    def test_no_limit(self, pool, clock):
        rules = FailureRules(restart=True, timeout_s=NEVER)
        workers, stand_in = pool(rules=rules, script={(1, 0, SAMPLE): [Does(1e5)]})
        workers.request(1, SAMPLE)
        assert workers.collect() == [value(1, 0, 0)]
        assert stand_in.killed == []
