"""`LearnerThread`: its queue, pauses, errors and end."""

import threading
import time

import pytest

from rollax.optimizers.learner_thread import LearnerThread
from rollax.optimizers.timings import Timings
from tests.optimizers.stand_ins import learner_threads
from tests.waiting import LONG, until


@pytest.fixture
def make():
    made = []

    def make_one(learn, size=2):
        timings = Timings()
        made.append(LearnerThread(learn, size, timings))
        return made[-1], timings

    yield make_one
    for learner in made:
        learner.stop()
    assert not learner_threads()


def test_is_paused_at_first_and_learns_in_order(make):
    learned = []
    learner, _ = make(learned.append, size=3)
    assert [learner.put(batch, 0.0) for batch in "abcd"] == [True, True, True, False]
    assert len(learner) == 3
    time.sleep(0.05)
    assert learned == []
    learner.resume()
    until(lambda: learner.updates == 3)
    assert learned == ["a", "b", "c"]
    assert len(learner) == 0


def test_put_waits_for_a_free_place(make):
    learner, _ = make(lambda batch: None, size=1)
    assert learner.put("a", 0.0)
    started = time.monotonic()
    assert not learner.put("b", 0.1)
    assert time.monotonic() - started >= 0.1
    threading.Timer(0.05, learner.resume).start()
    assert learner.put("b", LONG)


def test_a_pause_begins_between_two_batches(make):
    started_learning, resume, learned = threading.Event(), threading.Event(), []

    def learn(batch):
        started_learning.set()
        resume.wait(LONG)
        learned.append(batch)

    learner, _ = make(learn)
    learner.put("a", 0.0)
    learner.put("b", 0.0)
    learner.resume()
    started_learning.wait(LONG)
    threading.Timer(0.05, resume.set).start()
    learner.rest()
    assert learned == ["a"]
    assert learner.updates == 1
    time.sleep(0.05)
    assert learned == ["a"]


def test_an_error_is_raised_once_by_any_method_and_learning_continues(make):
    def learn(batch):
        if batch == "a":
            raise ZeroDivisionError(batch)

    learner, _ = make(learn)
    for method in (learner.check, learner.resume, lambda: learner.put("b", LONG)):
        learner.put("a", 0.0)
        learner.resume()
        until(lambda: learner.error is not None)
        learner.rest()
        with pytest.raises(ZeroDivisionError, match="a"):
            method()
        learner.check()
    assert learner.updates == 0
    learner.put("b", 0.0)
    learner.resume()
    until(lambda: learner.updates == 1)


def test_no_error_is_stored_during_a_check(make):
    learner, _ = make(lambda batch: None)
    checks = threading.Thread(target=learner.check)
    with learner._changed:  # as while the learner stores one
        checks.start()
        checks.join(0.05)
        assert checks.is_alive()
    checks.join(LONG)


def test_an_error_of_the_last_batch_before_a_stop_is_logged(make, caplog):
    started_learning = threading.Event()

    def learn(batch):
        started_learning.set()
        until(lambda: learner._thread is None)
        raise ZeroDivisionError(batch)

    learner, _ = make(learn)
    learner.put("a", 0.0)
    learner.resume()
    started_learning.wait(LONG)
    learner.stop()
    assert "ZeroDivisionError: a" in caplog.text
    learner.resume()


def test_stop_waits_for_the_current_batch(make):
    started_learning, learned = threading.Event(), []

    def learn(batch):
        started_learning.set()
        time.sleep(0.1)
        learned.append(batch)

    learner, _ = make(learn)
    learner.put("a", 0.0)
    learner.put("b", 0.0)
    learner.resume()
    started_learning.wait(LONG)
    learner.stop()
    assert learned == ["a"]


def test_waiting_for_batches_is_timed_and_pauses_are_not(make, monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr("rollax.optimizers.learner_thread.time", clock)
    learner, timings = make(lambda batch: None)
    clock.now = 100.0  # paused
    learner.resume()
    clock.now = 103.0  # waiting
    learner.put("a", 0.0)
    until(lambda: learner.updates == 1)
    learner.rest()
    clock.now = 200.0  # paused, with a batch in the queue
    learner.put("b", 0.0)
    learner.resume()
    until(lambda: learner.updates == 2)
    assert timings.take()[0]["learner_wait_s"] == 3.0
