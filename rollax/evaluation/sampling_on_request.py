"""`SamplingOnRequest`: how a worker samples without a background thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from rollax.env.base_env import BaseEnv
from rollax.errors import RollaxError
from rollax.evaluation.messages import Rollout


class SamplingOnRequest:
    """Samples a fragment whenever one is taken. The subclass `BackgroundSampling` samples them in a thread.

    After `ended`, `take`, `take_one` and `halted` raise a RollaxError.

    Args:
        sample: returns the next fragment.
        name: of the worker, for errors.
    """

    in_background: ClassVar[bool] = False

    def __init__(self, sample: Callable[[], Rollout], name: str) -> None:
        self._sample, self._name = sample, name
        self._ended = False

    def stepped(self, env: BaseEnv) -> BaseEnv:
        """The environment for the sampler."""
        return env

    def take(self, timeout_s: float | None = None) -> list[Rollout]:
        """One fragment; in the background, all that wait, or none after the timeout."""
        self._refuse_ended()
        return [self._sample()]

    def take_one(self, timeout_s: float | None = None) -> Rollout | None:
        """One fragment; in the background, the oldest that waits, or None after the timeout."""
        self._refuse_ended()
        return self._sample()

    def note_dropped(self, steps: int) -> None:
        """Adds steps that were dropped elsewhere; in the background, `Rollout.dropped_steps` reports them."""

    def turn(self) -> AbstractContextManager[Any]:
        """Context of reads and writes of the sampling state."""
        return nullcontext()

    @contextmanager
    def halted(self, *, drops: bool = False) -> Iterator[None]:
        """Context of code that must not run while a thread samples; `drops`: also drops fragments that wait."""
        self._refuse_ended()
        with self._paused(drops=drops):
            yield

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Context of closing the environment, which may be closed before; drops fragments that wait."""
        with self._paused(drops=True):
            self._ended = True
            yield

    def _paused(self, *, drops: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def _refuse_ended(self) -> None:
        if self._ended:
            raise RollaxError(
                "The worker has been stopped: its environments are closed.",
                where=self._name,
                got="a call that samples or plays episodes, after stop()",
                expected="such calls before stop(); get_weights() and policies still work",
                fix="call stop() last, or make a new worker",
            )
