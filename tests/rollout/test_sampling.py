"""Sampling in a background thread during learning."""

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box

from rollax import RolloutWorker
from rollax.batch import MultiAgentBatch
from rollax.errors import RollaxError
from rollax.rollout.background_sampling import BackgroundSampling, SamplingLock
from rollax.rollout.filters import MeanStdFilter
from rollax.rollout.messages import Rollout
from rollax.rollout.metrics import EpisodeList, EpisodeMetrics
from tests.env.refused import refused
from tests.rollout.worlds import Encode, Line
from tests.waiting import LONG, until

ROLLOUT = Rollout(0, 0, MultiAgentBatch({}, 0), 10, 10, EpisodeList(), {}, False, 0.0)


class Source:
    """Returns fragments of ten steps, each when the test allows it; it is also the environment."""

    def __init__(self, most_waiting=30):
        self.allowed, self.version = threading.Semaphore(0), 0
        self.made, self.fails = [], None
        self.newest, self.most_lag = 0, 100
        self.filter, self.filters_set = MeanStdFilter(Box(-9, 9, (1,), np.float32)), 0
        self.sampling = BackgroundSampling(
            self.sample,
            "the worker",
            self,
            most_waiting,
            is_too_old=lambda version: self.newest - version > self.most_lag,
            in_pool=True,
        )
        self.interrupted = False

    def poll_rows(self):
        self.allowed.acquire()
        if self.interrupted:
            raise InterruptedError

    def sample(self):
        self.sampling.env.poll_rows()
        if self.fails:
            error, self.fails = self.fails, None
            raise error
        self.made.append(len(self.made))
        episode = EpisodeMetrics(float(self.made[-1]), 10)
        self.filter(np.full((2, 1), self.made[-1], np.float32))
        return replace(
            ROLLOUT,
            worker_index=self.made[-1],
            version=self.version,
            episodes=EpisodeList([episode]),
            filters={"a": self.filter.take_delta()},
            filters_set={"a": self.filters_set},
        )

    def interrupt(self, interrupted):
        self.interrupted = interrupted
        if interrupted and self.sampling._thread is not None:
            self.allowed.release()

    def make(self, count):
        """Allows `count` fragments, and waits until they are ready."""
        goal = len(self.made) + count
        self.sampling._start()
        for _ in range(count):
            self.allowed.release()
        with self.sampling._changed:
            assert self.sampling._changed.wait_for(
                lambda: self.sampling._waiting and self.sampling._waiting[-1].worker_index == goal - 1, LONG
            )


@pytest.fixture
def source():
    source = Source()
    yield source
    with source.sampling.halted():
        pass


def numbers(rollouts):
    return [rollout.worker_index for rollout in rollouts]


class TestWaitingFragments:
    def test_are_taken_in_order(self, source):
        source.make(3)
        assert numbers(source.sampling.take(most=1)) == [0]
        assert numbers(source.sampling.take()) == [1, 2]

    def test_returns_nothing_after_the_timeout(self, source):
        assert source.sampling.take(0.01) == []
        assert source.sampling.take(0.01, most=1) == []
        source.make(1)
        assert numbers(source.sampling.take(0.01)) == [0]

    @pytest.mark.parametrize("halts", [False, True])
    def test_the_oldest_are_dropped_but_their_episodes_are_counted(self, source, halts):
        """A halt keeps the others, and what is noted of the dropped ones."""
        source.make(5)
        source.sampling.note_dropped(7)
        if halts:
            with source.sampling.halted():
                assert not any(thread.name == "rollax-sampling" for thread in threading.enumerate())
        taken = source.sampling.take()
        assert numbers(taken) == [2, 3, 4]
        assert taken[0].dropped_steps == 27
        assert [episode.reward for episode in taken[0].episodes] == [0.0, 1.0, 2.0]
        source.make(1)
        (taken,) = source.sampling.take()
        assert (taken.worker_index, taken.dropped_steps) == (5, 0)

    def test_fragments_of_old_weights_are_dropped(self, source):
        source.most_lag = 1
        source.make(2)
        source.newest, source.version = 2, 2
        source.make(1)
        source.sampling.note_dropped(7)
        (taken,) = source.sampling.take()
        assert (taken.worker_index, taken.dropped_steps) == (2, 27)

    def test_the_observations_of_dropped_ones_stay_in_the_filter(self, source):
        source.make(5)
        first, *others = [rollout.filters["a"] for rollout in source.sampling.take()]
        # Two observations of 0, of 1 and of 2: mean 1, squares 2 (1 + 0 + 1) = 4.
        assert {name: value.item() for name, value in first.items()} == {"count": 6, "mean": 1, "squares": 4}
        assert [(state["count"], state["mean"].item()) for state in others] == [(2, 3), (2, 4)]
        source.make(1)
        (taken,) = source.sampling.take()
        assert taken.filters["a"]["count"] == 2

    def test_the_observations_of_those_before_a_new_filter_do_not(self, source):
        source.make(3)
        source.filters_set = 1
        source.make(3)
        taken = source.sampling.take()
        assert [rollout.filters["a"]["count"] for rollout in taken] == [2, 2, 2]
        assert taken[0].dropped_steps == 30

    def test_a_whole_state_of_a_filter_is_not_added_to(self, source):
        source.make(1)
        (taken,) = source.sampling.take()
        assert replace(taken, whole_filters=True).with_statistics_of(taken).filters["a"]["count"] == 2
        assert taken.with_statistics_of(taken).filters["a"]["count"] == 4

    def test_an_exception_is_raised_once(self, source):
        source.fails = ValueError("broken")
        source.sampling._start()
        source.allowed.release()
        with pytest.raises(ValueError, match="broken"):
            source.sampling.take()
        source.make(1)
        assert numbers(source.sampling.take()) == [0]

    def test_a_halt_for_another_state_drops_them(self, source):
        source.make(5)
        source.sampling.note_dropped(7)
        with source.sampling.halted(drops=True):
            pass
        source.make(1)
        (taken,) = source.sampling.take()
        assert (taken.worker_index, taken.dropped_steps) == (5, 0)
        assert [episode.reward for episode in taken.episodes] == [5.0]

    @pytest.mark.parametrize("drops", [False, True])
    def test_a_halt_keeps_an_exception_and_a_halt_for_another_state_drops_it(self, source, drops):
        source.fails = ValueError("broken")
        source.sampling._start()
        thread = source.sampling._thread
        source.allowed.release()
        thread.join(LONG)
        with source.sampling.halted(drops=drops):
            pass
        if not drops:
            with pytest.raises(ValueError, match="broken"):
                source.sampling.take()
        source.make(1)
        assert numbers(source.sampling.take()) == [0]

    def test_sampling_continues_after_an_interrupted_halt(self, source, monkeypatch):
        source.make(1)
        thread, join = source.sampling._thread, source.sampling._thread.join

        def interrupted():
            monkeypatch.setattr(thread, "join", join)
            raise KeyboardInterrupt

        monkeypatch.setattr(thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt), source.sampling.halted():
            pass
        source.make(1)
        assert numbers(source.sampling.take()) == [0, 1]

    @pytest.fixture
    def interrupted_halt(self, source, monkeypatch):
        """A function that interrupts a halt whose thread does not end, and calls another one shortly after."""
        source.make(1)
        monkeypatch.setattr(source, "interrupt", lambda interrupted: None)

        def halt(then):
            def press_ctrl_c():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
                then()

            threading.Timer(0.05, press_ctrl_c).start()
            with source.sampling.halted():
                raise AssertionError("the halt was entered")

        return halt

    def test_a_halt_that_a_signal_interrupts_waits_for_the_thread(self, source, interrupted_halt):
        with pytest.raises(KeyboardInterrupt):
            interrupted_halt(source.allowed.release)
        assert source.made == [0, 1]

    def test_a_second_signal_ends_the_wait_for_a_thread_that_hangs(self, source, interrupted_halt):
        ended = threading.Event()

        def press_again():
            os.kill(os.getpid(), signal.SIGINT)
            if not ended.wait(1):  # the test fails, and does not hang
                source.allowed.release()

        with pytest.raises(KeyboardInterrupt):
            interrupted_halt(press_again)
        ended.set()
        assert source.made == [0]
        source.make(1)
        assert numbers(source.sampling.take()) == [0, 1]


def test_turns_are_held_only_while_the_sampling_thread_waits():
    turns, order, polling, polled = SamplingLock(), [], threading.Event(), threading.Event()

    def sample():
        with turns.sampling():
            order.append("samples")
            with turns.waiting():
                polling.set()
                polled.wait(LONG)
            order.append("samples on")

    thread = threading.Thread(target=sample)
    thread.start()
    polling.wait(LONG)
    with turns.held():
        polled.set()
        order.append("holds")
    thread.join(LONG)
    assert order == ["samples", "holds", "samples on"]


def test_turns_continue_after_an_interrupted_wait(monkeypatch):
    turns = SamplingLock()

    def interrupted(condition):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(turns._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), turns.held():
            pass
    samples = threading.Thread(target=lambda: turns.sampling().__enter__(), daemon=True)
    samples.start()
    samples.join(LONG)
    assert not samples.is_alive()


class EncodeAlways(Encode):
    acts_while_learning = True


class Stuck(Line):
    """Each step waits until the test allows it."""

    def __init__(self, context):
        super().__init__()
        self.allowed, self.begun = threading.Semaphore(0), 0

    def step(self, action):
        self.begun += 1
        assert self.allowed.acquire(timeout=LONG)
        return super().step(action)


def test_it_does_not_begin_again_after_a_stop():
    worker = RolloutWorker(lambda context: Line(), EncodeAlways, config={"sample_async": True})
    worker.stop()
    for call in (worker.sample_fragment, worker.sample_fragments, worker.sample, lambda: worker.evaluate(1)):
        refused(RollaxError, call, says="worker has been stopped")
    assert worker._sampling._thread is None
    worker.stop()


class TestCallsWithoutProgress:
    """The pool of workers notices them, see tests/rollout/test_ray_workers.py."""

    def call(self, sampling, taken):
        """Takes a fragment in a thread, and returns when the call waits for it."""
        waits, start = threading.Event(), sampling._start
        sampling._start = lambda: (start(), waits.set())
        thread = threading.Thread(target=lambda: taken.append(sampling.take(0.01, most=1)), daemon=True)
        thread.start()
        assert waits.wait(LONG)
        sampling._start = start
        return thread

    def worker(self, **arguments):
        config = {"sample_async": True, "rollout_fragment_length": 100, "train_batch_size": 100}
        worker = RolloutWorker(Stuck, EncodeAlways, config=config, **arguments)
        return worker, *worker.env.get_sub_environments()

    def test_do_not_return_before_a_step_has_finished(self):
        worker, env = self.worker(worker_index=1)
        taken = []
        worker._sampling._start()
        for step in (1, 2, 3):
            until(lambda step=step: env.begun == step)
            thread = self.call(worker._sampling, taken)
            thread.join(0.1)
            assert thread.is_alive()
            env.allowed.release()
            thread.join(LONG)
        assert taken == [[]] * 3
        env.allowed.release(1000)
        worker.stop()

    def test_return_in_the_local_worker_so_that_an_iteration_can_end(self):
        worker, env = self.worker()
        assert worker._sampling.take(0.01) == []
        assert worker.sample_fragment() is None
        env.allowed.release(1000)
        worker.stop()

    def test_return_if_the_sampling_begins_again_meanwhile(self, source):
        taken = []
        with source.sampling.halted():
            thread = self.call(source.sampling, taken)
        source.allowed.release()
        thread.join(LONG)
        assert numbers(*taken) == [0]

    def test_do_not_return_while_the_policy_of_an_external_environment_hangs(self, source):
        thinks, sample, taken = threading.Event(), source.sampling._sample, []
        source.sampling._sample = lambda: (sample(), thinks.wait(LONG))[0]
        source.allowed.release()
        source.sampling._start()
        until(lambda: source.made)
        thread = self.call(source.sampling, taken)
        thread.join(0.1)
        assert thread.is_alive()
        thinks.set()
        thread.join(LONG)
        assert numbers(*taken) == [0]
