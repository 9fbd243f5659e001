"""`SamplingOnRequest`: how a worker samples without a background thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from rollax.env.base_env import BaseEnv
from rollax.evaluation.messages import Rollout


class SamplingOnRequest:
    """Samples a fragment whenever one is taken. The subclass `BackgroundSampling` samples them in a thread.

    Args:
        sample: returns the next fragment.
        name: of the worker, for errors.
    """

    in_background: ClassVar[bool] = False

    def __init__(self, sample: Callable[[], Rollout], name: str) -> None:
        self._sample, self._name = sample, name

    def stepped(self, env: BaseEnv) -> BaseEnv:
        """The environment for the sampler."""
        return env

    def take(self, timeout_s: float | None = None) -> list[Rollout]:
        """One fragment; in the background, all that wait, or none after the timeout."""
        return [self._sample()]

    def take_one(self, timeout_s: float | None = None) -> Rollout | None:
        """One fragment; in the background, the oldest that waits, or None after the timeout."""
        return self._sample()

    def note_dropped(self, steps: int) -> None:
        """Adds steps that were dropped elsewhere; in the background, `Rollout.dropped_steps` reports them."""

    def turn(self) -> AbstractContextManager[Any]:
        """Context of reads and writes of the sampling state."""
        return nullcontext()

    @contextmanager
    def halted(self, *, drops: bool = False) -> Iterator[None]:
        """Context of code that must not run while a thread samples; `drops`: also drops fragments that wait."""
        yield
