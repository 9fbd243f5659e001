"""Compiled calls of several threads, made together."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.many.meeting import Meeting, MeetingEndedError
from tests import waiting


def in_threads(count, target):
    """The results or exceptions of `target(number)` in threads."""
    results = [None] * count

    def run(number):
        try:
            results[number] = target(number)
        except BaseException as error:
            results[number] = error

    waiting.in_threads(count, run)
    return results


def test_threads_get_their_own_results_from_one_call():
    meeting, calls = Meeting(3), []

    def traced(x, tree, factor):
        calls.append(x.shape)
        return {"sum": x * factor + tree["y"], "key": tree["key"]}

    def run(number):
        tree = {"y": np.full(2, number, np.float32), "key": jax.random.key(number)}
        found = [meeting.call(number, "f", traced, (np.float32(number), tree), (np.float32(10),)) for _ in range(2)]
        meeting.leave(number)
        return found[-1]

    for number, found in enumerate(in_threads(3, run)):
        np.testing.assert_array_equal(found["sum"], np.full(2, 11 * number))
        assert (jax.random.key_data(found["key"]) == jax.random.key_data(jax.random.key(number))).all()
    assert calls == [()]  # traced once, for one run of the map


def test_the_thread_that_is_behind_is_served_first():
    """Thread 1 calls `g` four times before the `f` that thread 0 waits with."""
    meeting, order = Meeting(2), []

    def call(number, name):
        meeting.call(number, name, lambda x: x, (np.float32(number),))
        order.append((number, name))

    def run(number):
        for _ in range(4 * number):
            call(number, "g")
        call(number, "f")
        meeting.leave(number)

    assert in_threads(2, run) == [None, None]
    assert order[-1] == (1, "f")
    assert len(order) == 6


def test_only_equal_calls_are_made_together():
    meeting = Meeting(2)

    def run(number):
        found = meeting.call(number, "f", jnp.add, (np.float32(1),), (np.float32(number),), together=number)
        meeting.leave(number)
        return float(found)

    assert in_threads(2, run) == [1.0, 2.0]


def test_errors_reach_all_threads_of_a_call():
    meeting = Meeting(2)

    def traced(x):
        raise ValueError("no")

    def run(number):
        try:
            return meeting.call(number, "f", traced, (np.float32(1),))
        finally:
            meeting.leave(number)

    assert all(isinstance(error, ValueError) for error in in_threads(2, run))


def test_the_end_releases_threads_that_wait():
    meeting = Meeting(2)
    waits = threading.Thread(target=lambda: (meeting._changed.acquire(), meeting._changed.release()))

    def run(number):
        if number == 1:
            waits.start()
            waits.join()
            meeting.end()
            return None
        return meeting.call(number, "f", jnp.negative, (np.float32(1),))

    first, _ = in_threads(2, run)
    assert isinstance(first, MeetingEndedError)
    with pytest.raises(MeetingEndedError):
        meeting.call(1, "f", jnp.negative, (np.float32(1),))
