"""Events of external episodes on their way from the threads that play them to the sampler, and the answers back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rollax.errors import EnvError

MOST_QUEUED = 1000
"""Events that wait for a poll before those who log actions have to wait too."""
_LONGEST_GATHERING = 0.005


class EnvStoppedError(EnvError):
    """An external environment was asked for something after the trainer, or whoever sampled from it, had stopped it."""


class Call:
    """A thread that waits for actions.

    Args:
        episodes: of how many episodes.
        missing: how many actions.
    Attributes:
        left: the thread was interrupted while it waited: nobody reads the actions.
    """

    __slots__ = ("episodes", "left", "lock", "missing", "stopped")

    def __init__(self, episodes: int, missing: int) -> None:
        self.episodes, self.missing, self.stopped, self.left = episodes, missing, False, False
        self.lock = threading.Lock()
        self.lock.acquire()


@dataclass(slots=True, eq=False)
class Trajectory:
    """One agent of one episode, from its first decision to its end."""

    agent: Hashable
    reward: float = 0.0  # received since the last event
    call: Call | None = None  # who waits for its action, until that thread has read it
    answer: Any = None
    slot: int = -1  # known to the sampler by this number; -1: not known. Only the sampler's thread touches it.


@dataclass(slots=True, eq=False)
class ExternalEpisode:
    """One episode as its players see it, and the events of it that the sampler has not seen."""

    id: Hashable
    trains: bool
    full_checks: int  # how many more events are checked in full
    trajectories: dict[Hashable, Trajectory] = field(default_factory=dict)
    logging: set[Hashable] = field(default_factory=set)  # agents whose logged action waits for room in the queue
    infos: dict[Hashable, dict] = field(default_factory=dict)  # since each agent's last event
    decided: bool = False
    over: bool = False
    events: deque[Event] = field(default_factory=deque)
    number: int = -1  # of the sub-environment; -1: the sampler knows of none. Only the sampler's thread touches it.


@dataclass(slots=True, eq=False)
class Event:
    """What happened at one moment to some agents of one episode.

    Args:
        episode: whose.
        trajectories: K agents.
        values: K observations; None where an agent ends without one.
        rewards: K rewards since each agent's last event.
        infos: the info dicts of those agents that have one, by their id.
        actions: K actions that were taken already; None where the policy is asked, or nothing is to be decided.
        ends: the trajectories end.
        truncated: they are cut off, and have not reached a terminal state.
        closes: the episode is over.
    """

    episode: ExternalEpisode
    trajectories: list[Trajectory]
    values: list[Any]
    rewards: list[float]
    infos: dict[Hashable, dict]
    actions: list[Any] | None = None
    ends: bool = False
    truncated: bool = False
    closes: bool = False


class EventQueue:
    """Keeps each episode's events in order and hands out one of each episode at a time.

    One lock guards everything. It is never held while either side works, and each waiting thread has a lock of its
    own, so that an answer wakes nobody whom it does not concern.

    Args:
        name: how error messages call the environment.
        patience: seconds without news after which an environment whose `run()` has returned is finished.
    """

    def __init__(self, name: str, patience: float) -> None:
        self.name, self.patience = name, patience
        self.lock = threading.Lock()
        self.stopped = False
        self.waiting: set[Call] = set()
        self._news = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._ready: list[ExternalEpisode] = []
        self._queued = 0
        self._awaited = 0  # how many ready episodes wake the sampler
        self._expected = 0  # how many there are once all who were answered have asked again
        self._taken_at = time.perf_counter()
        self._failure: BaseException | None = None
        self._finished = False

    # For the threads that play. The lock is held.

    def put(self, event: Event) -> None:
        """Queues an event."""
        self._queued += 1
        events = event.episode.events
        events.append(event)
        if len(events) == 1:
            self._ready.append(event.episode)

    def ring(self) -> None:
        """Wakes the sampler if enough is there."""
        if self._awaited and len(self._ready) >= self._awaited:
            self._awaited = 0
            self._news.notify()

    def await_room(self) -> None:
        """Blocks while too many events are queued."""
        while self._queued >= MOST_QUEUED and not self.stopped:
            self._room.wait()
        self.refuse_if_stopped()

    def refuse_if_stopped(self) -> None:
        """Raises where nobody will ever answer."""
        if self.stopped:
            raise EnvStoppedError(
                "The external environment was stopped.",
                where=self.name,
                got="a call after stop()",
                expected="no more of them",
                fix="let run(), and the other threads that play, return on EnvStoppedError",
            )

    # Without the lock.

    def wait(self, call: Call) -> None:
        """Blocks until all questions of a call are answered."""
        try:
            call.lock.acquire()
        except BaseException:  # Ctrl-C
            with self.lock:
                self.waiting.discard(call)
                call.left = True
            raise
        if call.stopped:
            self.refuse_if_stopped()

    # For the sampler.

    def take(self) -> list[Event]:
        """The next event of each episode that has one; blocks until there is one.

        Raises:
            EnvError: `run()` has raised, or it has returned and nothing came any more.
            EnvStoppedError: the environment was stopped meanwhile.
        """
        with self.lock:
            self._gather()
            events = [episode.events.popleft() for episode in self._ready]
            self._ready = [event.episode for event in events if event.episode.events]
            self._queued -= len(events)
            self._room.notify(len(events))
            self._expected = 0
        self._taken_at = time.perf_counter()
        return events

    def _gather(self) -> None:
        """Waits until something is there, and a little for those who were just answered: they may ask again.

        No longer than the last answers took: what is gained by full batches is never paid for twice.
        """
        took = time.perf_counter() - self._taken_at
        self._sleep(self._expected, min(took, _LONGEST_GATHERING))
        while not self._ready:
            finished = self._finished
            if not self._sleep(1, self.patience if finished else None) and finished:
                raise EnvError(
                    "The external environment has finished.",
                    where=self.name,
                    got=f"run() returned, and nothing came for {self.patience:g} s; some episodes may still be open",
                    expected="run() to go on for as long as it is sampled from",
                    fix="loop in run(), or let it join the threads that play",
                )

    def _sleep(self, count: int, timeout: float | None) -> bool:
        """Waits until so many episodes are ready; returns false when the time is over."""
        self._raise_if_over()
        if len(self._ready) >= count:
            return True
        self._awaited = count
        rang = self._news.wait(timeout)
        self._awaited = 0
        self._raise_if_over()
        return rang

    def _raise_if_over(self) -> None:
        self.refuse_if_stopped()
        if self._failure is not None:
            raise EnvError(
                f"The external environment raised {type(self._failure).__name__} in run(): {self._failure}",
                where=self.name,
                got="the traceback above",
                expected="run() to go on for as long as it is sampled from",
                fix="correct run(); it may catch what a single episode raises, and play the next one",
            ) from self._failure

    def answer(self, trajectories: Iterable[Trajectory], actions: Iterable[Any]) -> None:
        """Gives each trajectory its action and wakes the threads whose questions are all answered."""
        answered: list[Call] = []
        with self.lock:
            for trajectory, action in zip(trajectories, actions, strict=True):
                call, trajectory.answer = trajectory.call, action
                assert call is not None
                if call.left:
                    trajectory.call = None
                call.missing -= 1
                if not call.missing and not call.stopped:
                    answered.append(call)
            self.waiting.difference_update(answered)
            episodes = sum(call.episodes for call in answered)
            self._expected = max(self._expected, len(self._ready)) + episodes
        for call in answered:
            call.lock.release()

    def put_again(self, events: Iterable[Event]) -> None:
        """Events that have been taken come back, each before all others of its episode."""
        with self.lock:
            for event in events:
                queued = event.episode.events
                queued.appendleft(event)
                self._queued += 1
                if len(queued) == 1:
                    self._ready.append(event.episode)

    # For the thread of `run()`, and for stopping.

    def finish(self, failure: BaseException | None) -> None:
        """`run()` has returned, or raised."""
        with self.lock:
            self._finished, self._failure = True, failure
            self._news.notify()

    def stop(self) -> None:
        """Ends all waiting, now and for ever."""
        with self.lock:
            self.stopped = True
            calls, self.waiting = self.waiting, set()
            for call in calls:
                call.stopped = True
                call.lock.release()
            self._news.notify_all()
            self._room.notify_all()
