"""`ActorPool` with a simulated clock: the parts that `RemoteWorkers` does not use."""

import logging

import pytest

from rollax.errors import WorkerError
from rollax.processes.actor_pool import ActorPool
from rollax.processes.actors import LocalActors, ProcessLostError
from rollax.processes.failure_rules import FailureRules, Failures
from tests.env.refused import raised
from tests.processes.stand_in import NEVER, BrokenError, Does

REMAKE = {"makes": True, "remakes": True}


def outcomes(calls):
    """The outcomes and indices of calls."""
    return [("lost" if call.lost else call.error or call.value[0], call.index) for call in calls]


class TestReady:
    def test_ready_waits_for_the_first_call_then_at_most_a_timeout_for_others(self, actor_pool_of, clock):
        actors, _ = actor_pool_of(script={(0, 0, "step"): [Does(2)], (1, 0, "step"): [Does(5)] * 2})
        actors.send(0, "step")
        actors.send(1, "step")
        assert outcomes(actors.ready(1.0)) == []
        assert outcomes(actors.ready(NEVER, 2.5)) == [("step", 0)]
        assert clock.now == 1004.5
        actors.send(0, "step")
        assert outcomes(actors.ready(NEVER, 9.0)) == [("step", 0), ("step", 1)]
        assert clock.now == 1005.5

    def test_a_call_has_its_outcome(self, actor_pool_of):
        error = BrokenError("x")
        actors, _ = actor_pool_of(script={(0, 0, "step"): [Does(1, error)]})
        broken, good = actors.send(0, "step", 7, raises=True), actors.send(1, "step", 8)
        assert actors.pending == [broken, good]
        actors.ready(NEVER, NEVER)
        assert (broken.over, broken.lost, broken.error) == (True, False, error)
        assert error.__notes__ == ["(in stand-in 0)"]
        assert (good.over, good.value, str(good)) == (True, ("step", 1, 0, 0), "step(8)")
        assert actors.pending == []
        assert actors.healthy == 2

    def test_forgotten_calls_are_not_returned(self, actor_pool_of):
        actors, _ = actor_pool_of()
        actors.send(0, "add")
        actors.forget()
        assert actors.ready() == []
        actors.send(0, "draw")
        assert outcomes(actors.ready()) == [("draw", 0)]
        assert actors.ready() == []

    def test_an_actor_that_was_left_out_is_not_called(self, actor_pool_of):
        actors, stand_in = actor_pool_of(FailureRules(ignore=True), {(0, 0, "step"): [Does(1, BrokenError())]})
        assert [call.lost for call in (actors.send(0, "step"), *actors.ready())] == [True, True]
        late = actors.send(0, "step")
        assert (late.over, late.lost) == (True, True)
        assert [call.index for call in stand_in.calls] == [0]


class TestRemaking:
    def test_an_actor_that_raises_is_remade_in_its_process(self, actor_pool_of, clock):
        # Made at 1001; step raises at 1002; remade at 1003; the call held meanwhile returns at 1004.
        actors, stand_in = actor_pool_of(script={(0, 0, "step"): [Does(1, BrokenError("x"))]}, **REMAKE)
        actors.make_arguments = ("like the others",)
        assert actors.make_all() == {0: ("make", 0, 0, 0), 1: ("make", 1, 0, 0)}
        actors.send(0, "step")
        assert outcomes(actors.ready()) == [("lost", 0)]
        assert actors.healthy == 1
        actors.send(0, "reset")
        assert outcomes(actors.ready()) == [("reset", 0)]
        assert clock.now == 1004
        calls = [call[2:] for call in stand_in.calls if call.index == 0]
        assert calls == [("make", ()), ("step", ()), ("make", ("like the others",)), ("reset", ())]
        assert stand_in.killed == []
        assert actors.healthy == 2

    def test_failed_remaking_is_repeated_with_growing_delays(self, actor_pool_of, clock):
        script = {(0, 0, "step"): [Does(1, BrokenError())], (0, 0, "make"): [Does()] + [Does(1, BrokenError())] * 2}
        actors, stand_in = actor_pool_of(script=script, **REMAKE)
        actors.make_all()
        # Raises at 1002, is remade at once, raises at 1003; 2 s later again, raises at 1006; 4 s later it is made, at
        # 1011.
        for method in ("step", "reset", "reset"):
            actors.send(0, method)
            assert outcomes(actors.ready()) == [("lost", 0)]
        actors.send(0, "reset")
        assert outcomes(actors.ready()) == [("reset", 0)]
        assert clock.now == 1012
        assert stand_in.killed == []

    @pytest.mark.parametrize("does", [Does(1, ProcessLostError("killed")), Does(NEVER)], ids=["lost", "hung"])
    def test_an_actor_whose_process_is_lost_gets_a_new_one(self, actor_pool_of, does):
        rules = FailureRules(restart=True, timeout_s=5.0)
        actors, stand_in = actor_pool_of(rules, {(0, 0, "step"): [does]}, **REMAKE)
        actors.make_all()
        actors.send(0, "step")
        assert outcomes(actors.ready()) == [("lost", 0)]
        assert stand_in.killed == [(0, 0)]
        assert stand_in.generations == {0: 1, 1: 0}

    def test_without_restarts_the_error_is_raised_and_the_actor_kept(self, actor_pool_of):
        actors, stand_in = actor_pool_of(FailureRules(), {(0, 0, "step"): [Does(1, BrokenError())]}, **REMAKE)
        actors.make_all()
        actors.send(0, "step")
        raised(BrokenError, actors.ready)
        assert stand_in.killed == []
        assert actors.indices == [0, 1]


def test_errors_of_stopping_are_logged(actor_pool_of, caplog):
    caplog.set_level(logging.WARNING)
    actors, _ = actor_pool_of(script={(1, 0, "close"): [Does(1, BrokenError("the door"))]}, stop="close")
    actors.stop()
    assert "Stand-in 1 failed while it was stopped." in caplog.text
    assert "the door" in caplog.text


class Counter:
    """An actor in this process."""

    def __init__(self, index: int, restarts: int) -> None:
        self.place = index, restarts

    def echo(self, word: str) -> tuple:
        return (word, *self.place)

    def fail(self) -> None:
        raise BrokenError


def test_actors_of_this_process():
    failures = Failures(FailureRules(restart=True), "counter")
    counters = ActorPool(LocalActors(Counter), range(1, 3), failures)
    assert counters.call_all("echo", "a") == {1: ("a", 1, 0), 2: ("a", 2, 0)}
    assert counters.call_each("fail", {2: ()}) == {}
    assert counters.call_all("echo", "b") == {1: ("b", 1, 0), 2: ("b", 2, 1)}
    raised(BrokenError, counters.call_all, "fail", raises=True)
    assert counters.health()["restarts"] == 1
    counters.stop()
    with pytest.raises(WorkerError, match="No counter is left"):
        raise failures.unavailable()
