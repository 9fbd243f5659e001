"""`BackgroundSampling`: a worker samples in a thread during learning, so that actions do not wait for updates."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

from rollax.env.base_env import BaseEnv
from rollax.env.env_wrapper import EnvWrapper
from rollax.env.rows import Rows
from rollax.rollout.messages import Rollout
from rollax.rollout.metrics import EpisodeList
from rollax.rollout.sampler import SamplingOnRequest

MOST_EPISODES = 100_000
"""The largest number of episodes, from dropped fragments, that are kept for the metrics."""


class SamplingLock:
    """Gives other threads access to the state of sampling while the sampling thread waits for its environment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sampling: threading.Thread | None = None
        self._held = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Context in which the sampling thread samples; no other thread enters `held` meanwhile."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which a thread waits; if it is the thread inside `sampling`, others can enter `held` meanwhile."""
        if self._sampling is not threading.current_thread():  # it samples a fragment or evaluates, on request
            yield
            return
        self._leave()
        try:
            yield
        finally:
            self._enter()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context in which another thread works; entering it blocks until the sampling thread waits or has no work."""
        counted = False
        try:  # a signal can end the wait
            with self._changed:
                self._held += 1  # before the wait, because `_enter` then lets this thread go first
                counted = True
                self._changed.wait_for(lambda: not self._sampling)
            yield
        finally:
            with self._changed:
                self._held -= counted
                self._changed.notify_all()

    def _enter(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._sampling = threading.current_thread()

    def _leave(self) -> None:
        with self._changed:
            self._sampling = None
            self._changed.notify_all()


class YieldingEnv(EnvWrapper):
    """An environment that lets other threads enter a `SamplingLock` during its polls.

    Attributes:
        polls: the number of polls that have returned.
        polling: whether a poll is running, or the last poll raised.
    """

    def __init__(self, env: BaseEnv, turns: SamplingLock) -> None:
        super().__init__(env)
        self._lock = turns
        self.polls, self.polling = 0, False

    @property
    def waits(self) -> bool:
        """Whether a poll is running that can be interrupted, because it may wait long for external clients."""
        return self.polling and getattr(self.env.interrupt, "__func__", None) is not BaseEnv.interrupt

    def poll_rows(self) -> Rows:
        self.polling = True
        with self._lock.waiting():
            rows = self.env.poll_rows()
        self.polls, self.polling = self.polls + 1, False
        return rows


class BackgroundSampling(SamplingOnRequest):
    """Keeps the fragments of a sampling thread until they are taken.

    Sampling never waits: if fragments are taken too slowly, the oldest are dropped, and counted. An exception in
    the thread is raised once, by the next `take`; the following call of `take` starts the thread again.

    Args:
        sample: returns the next fragment; called in the thread.
        name: the name of the worker, for errors.
        env: the environment. The attribute `env` wraps it; other threads may enter `turn` during polls of the wrapper.
        most_waiting: maximum number of environment steps in all kept fragments; the newest fragment is always kept.
        is_too_old: returns whether fragments sampled with a version of the weights are too old to learn from.
        in_pool: whether a pool of workers takes the fragments, and detects hung workers by calls that do not return.
    """

    in_background: ClassVar[bool] = True
    env: YieldingEnv

    def __init__(
        self,
        sample: Callable[[], Rollout],
        name: str,
        env: BaseEnv,
        most_waiting: int,
        is_too_old: Callable[[int], bool],
        in_pool: bool,
    ) -> None:
        self._lock = SamplingLock()
        super().__init__(sample, name, YieldingEnv(env, self._lock))
        self._most_waiting, self._is_too_old, self._in_pool = most_waiting, is_too_old, in_pool
        self._changed = threading.Condition()
        self._waiting: deque[Rollout] = deque()
        # The steps and episodes of dropped fragments, which the next fragment that is taken reports:
        self._dropped, self._episodes = 0, EpisodeList()
        self._statistics: Rollout | None = None  # the last dropped fragment, without rows, with the statistics of all
        self._thread: threading.Thread | None = None
        self._halting = False
        self._error: BaseException | None = None

    @property
    def runs_here(self) -> bool:
        """Whether the calling thread is the sampling thread."""
        return self._thread is threading.current_thread()

    def turn(self) -> AbstractContextManager[Any]:
        """Context of reads and writes of the sampling state; other threads enter it while the sampling thread waits."""
        return nullcontext() if self.runs_here else self._lock.held()

    def take(self, timeout_s: float | None = None, most: int | None = None) -> list[Rollout]:
        """The `most` oldest fragments (None: all), without those that are too old; blocks until there is one.

        After the timeout the result is []. In a pool, however, the call keeps blocking if no poll has returned and the
        environment does not wait for clients, so that the pool notices that the worker hangs. The first call starts
        the thread.
        """
        polls = self.env.polls
        with self._changed:
            while True:
                self._refuse_ended()
                self._start()
                if not self._changed.wait_for(lambda: self._waiting or self._error, timeout_s):
                    if self._in_pool and self.env.polls == polls and not self.env.waits:
                        continue
                    return []
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                fresh = []
                while self._waiting and len(fresh) != most:
                    rollout = self._waiting.popleft()
                    if self._is_too_old(rollout.version):
                        self._drop(rollout)
                    else:
                        fresh.append(rollout)
                if fresh:
                    episodes, self._episodes = EpisodeList([*self._episodes, *fresh[0].episodes]), EpisodeList()
                    dropped, self._dropped = self._dropped, 0
                    first, self._statistics = self._with_statistics(fresh[0]), None
                    return [replace(first, episodes=episodes, dropped_steps=dropped), *fresh[1:]]

    def note_dropped(self, steps: int) -> None:
        with self._changed:
            self._dropped += steps

    @contextmanager
    def _paused(self, *, drops: bool) -> Iterator[None]:
        """Halts the thread. If this interrupts a poll, the steps that are in no fragment yet are dropped.

        Waiting fragments, and an exception that `take` has not raised yet, are kept. With `drops` they are discarded,
        and so are the counts and episodes of fragments that were dropped earlier.
        """
        if self.runs_here:
            yield
            return
        try:
            self._halt()
            yield
        finally:
            with self._changed:
                self._halting = False
                if drops:
                    self._error = None
                    self._waiting.clear()
                    self._dropped, self._episodes, self._statistics = 0, EpisodeList(), None

    def _halt(self) -> None:
        with self._changed:
            self._halting, thread = True, self._thread
        self.env.interrupt(True)
        try:
            if thread is not None:
                self._await_end(thread)
        finally:
            self.env.interrupt(False)

    def _await_end(self, thread: threading.Thread) -> None:
        try:
            self._wait(thread)
        except BaseException:  # a signal; the thread ends soon, and no other thread may sample before it has ended
            self._wait(thread)  # a second signal ends this wait, too: the environment may hang
            raise
        thread.join()  # only now: before Python 3.13, an interrupted `join` marks a running thread as ended

    def _wait(self, thread: threading.Thread) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._thread is not thread)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rollax-sampling", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        error = None
        self.env.polling = False
        try:
            while not self._halting:
                with self._lock.sampling():
                    rollout = self._sample()
                self._add(rollout)
        except BaseException as raised:  # raised again by `take`
            error = raised
        interrupted = self._halting and self.env.waits
        with self._changed:
            self._thread = None
            self._error = None if interrupted else error
            self._changed.notify_all()

    def _add(self, rollout: Rollout) -> None:
        with self._changed:
            self._waiting.append(rollout)
            steps = sum(waiting.env_steps for waiting in self._waiting)
            while len(self._waiting) > 1 and steps > self._most_waiting:
                oldest = self._waiting.popleft()
                steps -= oldest.env_steps
                self._drop(oldest)
            self._changed.notify_all()

    def _drop(self, rollout: Rollout) -> None:
        """Drops a fragment; its finished episodes still count in the metrics, its observations in the filters."""
        self._dropped += rollout.env_steps
        self._statistics = replace(self._with_statistics(rollout), batch=None, episodes=EpisodeList())
        self._episodes += rollout.episodes
        del self._episodes[:-MOST_EPISODES]

    def _with_statistics(self, rollout: Rollout) -> Rollout:
        return rollout if self._statistics is None else rollout.with_statistics_of(self._statistics)
