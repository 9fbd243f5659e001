"""`EventQueue`: passes events of external episodes to the sampler, and the sampler's actions to the playing threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rollax.env.external.episode import ActionRequest, Event, ExternalEpisode, Trajectory
from rollax.errors import EnvError, text_of

MOST_QUEUED = 1000
"""With this many waiting events, logging an action blocks."""
_LONGEST_GATHERING = 0.005


class EnvStoppedError(EnvError):
    """A method of an external environment was called after sampling had stopped, or still waited then."""


class QueueFullError(EnvError):
    """Too many logged events wait for the sampler; the call may be repeated later."""


class PollInterruptedError(EnvError):
    """`EventQueue.interrupt` has ended a poll."""


class EventQueue:
    """Keeps the events of each episode in order and returns one event per episode at a time.

    One lock guards the state. Each waiting thread has its own lock, so that an action wakes only that thread. An
    environment whose `run()` has returned is finished after `patience` seconds without events.
    """

    def __init__(self, name: str, patience: float) -> None:
        self.name, self.patience = name, patience
        self.lock = threading.Lock()
        self.stopped = False
        self.waiting: set[ActionRequest] = set()
        self._arrived = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self._ready: list[ExternalEpisode] = []
        self._queued = 0
        self._awaited = 0  # number of ready episodes that wakes the sampler
        self._expected = 0  # number of ready episodes once all answered threads have sent new requests
        self._taken_at = time.perf_counter()
        self._failure: BaseException | None = None
        self._finished = False
        self._interrupted = False

    # For the playing threads, with the lock held.

    def put(self, event: Event) -> None:
        self._queued += 1
        events = event.episode.events
        events.append(event)
        if len(events) == 1:
            self._ready.append(event.episode)

    def wake_sampler(self) -> None:
        """Wakes the sampler if enough events are queued."""
        if self._awaited and len(self._ready) >= self._awaited:
            self._awaited = 0
            self._arrived.notify()

    def await_room(self) -> None:
        """Blocks while too many events are queued."""
        while self._queued >= MOST_QUEUED and not self.stopped:
            self._room.wait()
        self.refuse_if_stopped()

    def refuse_if_full(self) -> None:
        if self._queued >= MOST_QUEUED:
            what = "Too many logged events wait for the sampler."
            fix = "log it again later; the queue is emptied while the trainer samples"
            raise QueueFullError(what, self.name, f"{self._queued} events").expected(f"fewer than {MOST_QUEUED}", fix)

    def refuse_if_stopped(self) -> None:
        if self.stopped:
            raise EnvStoppedError("The external environment was stopped.", self.name, "a call after stop()").expected(
                "no further call", "let run() and the other playing threads return when EnvStoppedError is raised"
            )

    # Without the lock.

    def wait(self, request: ActionRequest) -> None:
        """Blocks until all actions of a request are available."""
        try:
            request.lock.acquire()
        except BaseException:  # Ctrl-C
            with self.lock:
                request.left = True  # the request is still answered, because its agents wait in the sampler
            raise
        if request.stopped:
            self.refuse_if_stopped()

    # For the sampler.

    def take(self) -> list[Event]:
        """Returns the next event of each episode that has one; blocks until there is one.

        Raises:
            EnvError: `run()` has raised, or it has returned and no more events arrived.
            EnvStoppedError, PollInterruptedError: the environment was stopped, or `interrupt(True)` was called.
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
        """Waits for an event, and briefly for new requests of the threads that just received actions."""
        # Waits at most 5 ms, and at most as long as the last forward pass took: a fuller batch cannot save more.
        took = time.perf_counter() - self._taken_at
        self._sleep(self._expected, min(took, _LONGEST_GATHERING))
        while not self._ready:
            finished = self._finished
            if not self._sleep(1, self.patience if finished else None) and finished:
                got = f"run() returned, and no event came for {self.patience:g} s; some episodes may still be open"
                raise EnvError("The external environment has finished.", self.name, got).expected(
                    "run() to run while the environment is sampled", "loop in run(), or join the playing threads in it"
                )

    def _sleep(self, count: int, timeout: float | None) -> bool:
        """Waits until `count` episodes are ready; returns False after the time limit."""
        self._raise_if_over()
        if len(self._ready) >= count:
            return True
        self._awaited = count
        woken = self._arrived.wait(timeout)
        self._awaited = 0
        self._raise_if_over()
        return woken

    def _raise_if_over(self) -> None:
        self.refuse_if_stopped()
        if self._interrupted:
            raise PollInterruptedError("The poll was interrupted.", where=self.name)
        if self._failure is not None:
            what = f"The external environment raised {type(self._failure).__name__} in run(): {text_of(self._failure)}"
            expected = "run() to run while the environment is sampled"
            fix = "correct run(), or catch errors of a single episode in it and play the next one"
            raise EnvError(what, self.name, "the traceback above", expected=expected, fix=fix) from self._failure

    def answer(self, trajectories: Iterable[Trajectory], actions: Iterable[Any]) -> None:
        """Assigns an action to each trajectory and wakes the threads whose requests are complete."""
        answered: list[ActionRequest] = []
        with self.lock:
            for trajectory, action in zip(trajectories, actions, strict=True):
                request, trajectory.answer = trajectory.request, action
                assert request is not None
                if request.left:
                    trajectory.request = None
                request.missing -= 1
                if not request.missing and not request.stopped:
                    answered.append(request)
            episodes = sum(request.episodes for request in answered)
            self._expected = max(self._expected, len(self._ready)) + episodes
        self._complete(answered)

    def interrupt(self, interrupted: bool) -> None:
        """With True, a running `take` and all later calls raise a PollInterruptedError, until a call with False."""
        with self.lock:
            self._interrupted = interrupted
            self._arrived.notify_all()

    def put_again(self, events: Iterable[Event]) -> None:
        """Puts events from `take` back into the queue, each before the other events of its episode."""
        with self.lock:
            for event in events:
                queued = event.episode.events
                queued.appendleft(event)
                self._queued += 1
                if len(queued) == 1:
                    self._ready.append(event.episode)

    def request_again(self) -> None:
        """Queues events from `take` again if their actions are missing, each before the other events of its episode.

        This method completes what an interrupt left incomplete in the sampler's thread: in `take`, in `answer`, or in
        an earlier call of this method.
        """
        with self.lock:
            answered, ready = [], dict.fromkeys(self._ready)
            for request in self.waiting:
                request.missing = 0
                for place, event in enumerate(request.events):
                    if rows := event.unanswered(request):
                        request.missing += len(rows)
                        queued = event.episode.events
                        if event not in queued:
                            request.events[place] = part = event.part(rows)
                            queued.appendleft(part)
                        ready[event.episode] = None
                if not request.missing:
                    answered.append(request)
            self._ready = [episode for episode in ready if episode.events]
            self._queued = sum(len(episode.events) for episode in self._ready)
        self._complete(answered)

    def _complete(self, requests: Sequence[ActionRequest]) -> None:
        """Passes on the actions of complete requests; only then may their agents make new requests."""
        with self.lock:
            for request in requests:
                if request.on_done is not None:
                    request.answers = request.answers or [trajectory.answer for trajectory in request.trajectories]
                    for trajectory in request.trajectories:
                        if trajectory.request is request:  # from here on its agent may make the next request
                            trajectory.request = trajectory.answer = None
        self._end(requests)

    # For the thread of `run()`, and for stopping.

    def finish(self, failure: BaseException | None) -> None:
        """Records that `run()` has returned or raised."""
        with self.lock:
            self._finished, self._failure = True, failure
            self._arrived.notify()

    def stop(self) -> None:
        """Ends all pending requests, and refuses later calls."""
        with self.lock:
            self.stopped = True
            requests, self.waiting = self.waiting, set()
            for request in requests:
                request.stopped = True
            self._arrived.notify_all()
            self._room.notify_all()
        self._end(request for request in requests if not request.left)

    def _end(self, requests: Iterable[ActionRequest]) -> None:
        """Wakes the threads of the requests, and calls the callbacks; `EnvError` at the end if a callback raised."""
        failure: Exception | None = None
        for request in requests:
            try:
                request.done()
            except Exception as error:
                failure = failure or error
            self.waiting.discard(request)
        if failure is not None:
            raise EnvError.raised(
                "The callback of request_actions",
                failure,
                self.name,
                "on_actions to return, also for an EnvStoppedError",
            ) from failure
