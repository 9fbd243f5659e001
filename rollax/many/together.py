"""`train_together`: runs that train at the same time in one process, and share what is compiled for one of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import FunctionType
from typing import Any, TypeVar

import jax

from rollax.algorithms.trainer import Trainer
from rollax.core.cleanup import cleanup_on_error
from rollax.core.frozen import content_of
from rollax.errors import ConfigError, page
from rollax.many.meeting import Meeting, MeetingEndedError
from rollax.optimizers.compiled_rounds import CompiledRounds
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.worker_set import WorkerSet

Result = TypeVar("Result")
_POLL_S = 0.2
_JOIN_S = 10.0


def is_compiled(trainer: Trainer) -> bool:
    """Returns whether a trainer samples in compiled calls and in this process only, so that it can train together."""
    worker = trainer.worker
    return worker.samples and not trainer.workers.remote and type(worker.sampler) is CompiledSampler


def may_differ(trainer: Trainer) -> set[str]:
    """Returns the config fields in which runs may differ from a trainer: compiled functions get them as arguments.

    They are the seed, and the fields that can have a schedule, with their schedules.
    """
    names = trainer.config.scheduled_fields()
    return {"seed", *names, *(f"{name}_schedule" for name in names)}


def train_together(
    make: Callable[[int], Trainer],
    count: int,
    run: Callable[[int, Trainer], Result],
    *,
    watch: Callable[[], None] = lambda: None,
    mapped: bool | None = None,
) -> list[Result | BaseException]:
    """Makes trainers and calls `run(number, trainer)` for each; returns the results, or exceptions that were raised.

    Environments, algorithms and models of the trainers must be equal, so that they can share compiled functions.
    Numbers that compiled functions get as arguments may differ: seeds, and keys that can have a schedule, such as `lr`.
    Each run has the same numbers as if it trained alone, up to rounding if `mapped` is true.

    Args:
        make: `make(number)` returns the trainer of run 0, 1, ..., for which `is_compiled` is true. If `mapped` is
            false, several threads call `make`.
        count: S, the number of runs.
        run: trains and evaluates a trainer, in a thread.
        watch: called about five times a second, in the thread of the caller. If it raises, all runs end.
        mapped: whether one call makes the steps of all runs, by `jax.vmap`. Otherwise there are as many threads as
            CPUs, and each calls the shared functions by itself: on a CPU that is about twice as fast, because the
            arrays of one run fit into its caches. None: true where JAX has an accelerator.
    Raises:
        ConfigError: `is_compiled` is false for the first trainer. If a later trainer differs in a key that must
            be equal, the result of its run is a ConfigError.
        Exception: the error of `make(0)`, or with `mapped` of any call of `make`; the trainers made before are stopped.
    """
    if mapped is None:
        mapped = jax.default_backend() != "cpu"
    runs = _Runs(make, count, run, mapped=mapped)
    threads = [threading.Thread(target=runs.work, daemon=True) for _ in range(count if mapped else min(count, _cpus()))]
    for thread in threads:
        thread.start()
    try:
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(_POLL_S)
            watch()
    except BaseException:
        runs.end()
        for thread in threads:
            thread.join(_JOIN_S)
        runs.stop()
        raise
    return runs.results


class _Runs:
    """The runs of `train_together`, which threads take one after another."""

    def __init__(
        self, make: Callable[[int], Trainer], count: int, run: Callable[[int, Trainer], Any], *, mapped: bool
    ) -> None:
        self._make, self._run = make, run
        self._meeting = Meeting(count) if mapped else None
        self._ending = threading.Event()
        first = make(0)
        self._waiting: SimpleQueue[tuple[int, Trainer | None]] = SimpleQueue()
        self._waiting.put((0, first))
        with cleanup_on_error(self.stop):
            if not is_compiled(first):
                raise ConfigError(
                    "Trainers train together only if they sample in compiled calls.", "train_together(make)", first
                ).expected(f"an environment in JAX, num_workers=0, and only compiled parts: {page('jax-environments')}")
            self._functions = _Functions(first, self._ending)
            for number in range(1, count):
                self._waiting.put((number, make(number) if mapped else None))  # with `mapped`, each run has its thread
        self.results: list[Any] = [None] * count

    def work(self) -> None:
        """Takes and runs waiting trainers until none is left."""
        while not self._ending.is_set():
            try:
                number, trainer = self._waiting.get_nowait()
            except Empty:
                return
            try:
                self.results[number] = self._result_of(number, trainer)
            except BaseException as error:
                self.results[number] = error
            finally:
                if self._meeting is not None:
                    self._meeting.leave(number)

    def end(self) -> None:
        """Ends the runs at their next compiled calls."""
        self._ending.set()
        if self._meeting is not None:
            self._meeting.end()

    def stop(self) -> None:
        """Stops the trainers that no thread has taken."""
        with ExitStack() as trainers, suppress(Empty):
            while True:
                _, trainer = self._waiting.get_nowait()
                if trainer is not None:
                    trainers.callback(trainer.stop)

    def _result_of(self, number: int, trainer: Trainer | None) -> Any:
        with self._make(number) if trainer is None else trainer as made:
            self._functions.give(made, None if self._meeting is None else partial(self._meeting.call, number))
            return self._run(number, made)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Functions:
    """The compiled functions of the first trainer, for all trainers."""

    def __init__(self, first: Trainer, ending: threading.Event) -> None:
        self._first, self._ending = first, ending
        self._rounds = _rounds_of(first)
        self._call = None if self._rounds is None else _AloneAtFirst(self._rounds.call, ending)
        self._lock = threading.Lock()
        self._samplers: dict[str, tuple[CompiledSampler, Callable[..., Any]]] = {}

    def give(self, trainer: Trainer, meet: Callable[..., Any] | None) -> None:
        """Replaces the compiled functions of a trainer; `meet` is `Meeting.call` of its thread, if there is one."""
        self._check_equal(trainer)
        if (rounds := _rounds_of(trainer)) is not None and self._rounds is not None and self._call is not None:
            rounds.call = self._call if meet is None else _mapped_rounds(self._rounds, meet)
        self._give_to("train", trainer.workers, meet)
        trainer.evaluator.on_workers = partial(self._give_to, "evaluate", meet=meet)

    def _check_equal(self, trainer: Trainer) -> None:
        """Raises ConfigError unless the functions of the first trainer fit this trainer."""
        own, first = trainer.config, self._first.config
        names = type(own).model_fields.keys() - may_differ(trainer)
        different = [name for name in sorted(names) if not _same(getattr(own, name), getattr(first, name))]
        if type(trainer) is not type(self._first) or different:
            raise ConfigError(
                "Trainers train together only if they differ in nothing but seeds and keys that can have a schedule.",
                "train_together(make)",
                f"{type(trainer).__name__}, with other values of {different}",
            ).expected(
                f"a {type(self._first).__name__} with the values of the first one", "train it in a call of its own"
            )

    def _give_to(self, name: str, workers: WorkerSet, meet: Callable[..., Any] | None) -> None:
        sampler = workers.local.sampler if workers.local.samples else None
        if type(sampler) is not CompiledSampler:
            return
        with self._lock:
            first, roll = self._samplers.setdefault(name, (sampler, _AloneAtFirst(sampler.roll, self._ending)))
        sampler.env.share_functions(first.env)
        sampler.roll = roll if meet is None else _mapped_roll(name, first, meet)


def _same(one: Any, other: Any) -> bool:
    """Whether values are equal; functions are equal if their code, captured variables and defaults are equal."""
    one, other = _compared(one), _compared(other)
    try:
        return bool(one == other)
    except ValueError:  # arrays have no single truth value
        return content_of(one) == content_of(other)


def _compared(value: Any) -> Any:
    if not isinstance(value, FunctionType):
        return value
    return value.__code__, *_captured(value), value.__defaults__, value.__kwdefaults__


def _captured(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable without a value so far
            yield cell.cell_contents


def _rounds_of(trainer: Trainer) -> CompiledRounds | None:
    return getattr(trainer.optimizer, "rounds", None)


class _AloneAtFirst:
    """A compiled function whose first call completes before other calls begin, so that it is compiled once.

    Once `ending` is set, calls raise MeetingEndedError.
    """

    def __init__(self, function: Callable[..., Any], ending: threading.Event) -> None:
        self._function, self._ending = function, ending
        self._lock, self._compiled = threading.Lock(), False

    def __call__(self, *args: Any, **settings: Any) -> Any:
        if self._ending.is_set():
            raise MeetingEndedError
        if self._compiled:
            return self._function(*args, **settings)
        with self._lock:
            result = self._function(*args, **settings)
            self._compiled = True
        return result


def _mapped_rounds(first: CompiledRounds, meet: Callable[..., Any]) -> Callable[..., Any]:
    function = partial(first.traced_run, ends_early=False)

    def call(*arguments: Any) -> Any:
        *mapped, drawn, taken, count = arguments
        at_once = len(jax.tree.leaves(drawn)[0])
        together = int(taken), int(count)
        return meet(("rounds", at_once), function, (*mapped, drawn), (taken, count), together)

    return call


def _mapped_roll(name: str, first: CompiledSampler, meet: Callable[..., Any]) -> Callable[..., Any]:
    def roll(params: Any, extra: Any, carry: Any, noise: Any, *, steps: int, learning: frozenset[str]) -> Any:
        kind = name, steps, learning, noise is None
        return meet(kind, partial(first.traced_rollout, steps=steps, learning=learning), (params, extra, carry, noise))

    return roll
