"""`LearnerThread`: learns from a queue of batches while another thread samples; `LearnsInThread`: its optimizers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rollax.optimizers.optimizer import Optimizer
from rollax.optimizers.timings import Timings

log = logging.getLogger("rollax.optimizers")


class LearnerThread:
    """Learns from one batch after another, except while it is paused.

    While it is paused, as it is at first, the owner may read and write all state of learning. An exception of learning
    pauses the thread and is raised once in the owner's thread; the next `resume` continues with the next batch. The
    thread starts with the first `resume`, and again with the first after `stop`. Up to `queue_size` batches wait.
    """

    def __init__(self, learn: Callable[[Any], None], queue_size: int, timings: Timings) -> None:
        self._learn = learn
        self._size = queue_size
        self._timings = timings
        self._batches: deque[Any] = deque()
        self._changed = threading.Condition()
        self._resting, self._learning = True, False
        self.error: BaseException | None = None  # the exception of learning, until `check` raises it
        self._free_since = 0.0  # time.perf_counter() at the end of the last pause or batch
        self.updates = 0  # batches learned from
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: Any, timeout_s: float) -> bool:
        """Adds a batch to the queue; False if there was no room within the time. Raises an exception of learning."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._size or self.error, timeout_s)
            self.check()
            if len(self._batches) >= self._size:
                return False
            self._batches.append(batch)
            self._changed.notify_all()
            return True

    def check(self) -> None:
        """Raises the exception of learning, if there was one since the last call."""
        with self._changed:  # an error that is stored meanwhile is not lost
            error, self.error = self.error, None
        if error is not None:
            raise error

    def wait_for_update(self, timeout_s: float) -> None:
        """Waits until one more batch is learned from, learning has raised, or the time has passed."""
        with self._changed:
            before = self.updates
            self._changed.wait_for(lambda: self.updates > before or self.error, timeout_s)

    def resume(self) -> None:
        with self._changed:
            self.check()
            self._resting = False
            self._free_since = time.perf_counter()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rollax-learner", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def rest(self) -> None:
        """Waits for the end of the current batch, and pauses the thread."""
        with self._changed:
            self._resting = True
            self._changed.wait_for(lambda: not self._learning)

    def stop(self) -> None:
        """Ends the thread after the current batch, and drops the queue; logs an exception that was not raised yet."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._batches.clear()
            self._resting = True
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        error, self.error = self.error, None
        if error is not None:
            log.error("The last update before a stop has failed.", exc_info=error)

    def _run(self) -> None:
        here = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._thread is not here or (self._batches and not self._resting))
                if self._thread is not here:  # stopped
                    return
                batch = self._batches.popleft()
                self._learning = True
                self._changed.notify_all()
            self._timings.add("learner_wait_s", time.perf_counter() - self._free_since)
            error = None
            try:
                self._learn(batch)
            except BaseException as raised:  # it is raised again in the owner's thread
                error = raised
            with self._changed:
                self._learning, self._free_since = False, time.perf_counter()
                if error is None:
                    self.updates += 1
                else:
                    self.error, self._resting = error, True
                self._changed.notify_all()


class LearnsInThread(Optimizer):
    """An optimizer with a learner thread, which is paused between two steps."""

    pauses_between_steps = False
    _learner: LearnerThread

    def _set_up(self) -> None:
        super()._set_up()
        self._weights: deque[tuple[int, Any]] = deque(maxlen=1)  # the newest, to be broadcast, with their version

    def rest(self) -> None:
        self._learner.rest()

    def stop(self) -> None:
        self._learner.stop()

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Context of a step during which the thread learns; the newest weights are broadcast at its end."""
        self._learner.resume()
        try:
            yield
        finally:
            self._learner.rest()
        self._learner.check()
        self._broadcast_newest()  # the caller may set other weights before the next step

    def _hand_over_weights(self) -> None:
        """Called in the learner thread: the current weights will be broadcast."""
        self._weights.append((self.version, self.local_worker.get_weights()))

    def _broadcast_newest(self) -> None:
        if self._weights:
            self._publish(*self._weights.pop())
