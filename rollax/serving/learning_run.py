"""A run that serves while it learns, until a signal ends it; it goes on from the newest checkpoint of its folder."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rollax.algorithms.registry import run_name
from rollax.algorithms.trainer import Trainer
from rollax.errors import NonFiniteError
from rollax.evaluation.rollout_worker import RolloutWorker
from rollax.runs.run_folder import CHECKPOINTS, PREFIX, RunFolder
from rollax.serving.policy_server_env import MultiAgentPolicyServerEnv, PolicyServerEnv
from rollax.storage import newest

log = logging.getLogger("rollax.serving")

KEPT_CHECKPOINTS = 3
_SECONDS_PER_ITERATION = 2.0
_AGAIN_S = 1.0
_MOST_FAILURES = 10


class SignalledError(BaseException):
    """A signal has arrived; its number is the argument."""


def make_learning_trainer(
    trainer_class: type[Trainer], config: Mapping[str, Any], env_config: Mapping[str, Any], folder: Path
) -> Trainer:
    """A trainer whose environment is a policy server, restored from the newest checkpoint in `folder` if there is one.

    Args:
        trainer_class: of the algorithm.
        config: of the trainer; the default `env` is PolicyServerEnv, with `multiagent` policies
            MultiAgentPolicyServerEnv.
        env_config: settings of the server, which those in `config` override.
        folder: of the run.
    Raises:
        ConfigError, CheckpointError: the config is wrong, or the checkpoint does not fit it.
    """
    several = bool((config.get("multiagent") or {}).get("policies"))
    defaults = {
        "env": MultiAgentPolicyServerEnv if several else PolicyServerEnv,
        "min_time_s_per_iteration": _SECONDS_PER_ITERATION,
    }
    settings = {**env_config, "run_folder": str(folder), **config.get("env_config", {})}
    trainer = trainer_class(config={**defaults, **config, "env_config": settings})
    try:
        found = newest(folder / CHECKPOINTS, PREFIX)
        if found is not None:
            trainer.restore(found)
    except BaseException:
        trainer.stop()
        raise
    return trainer


def addresses_of(trainer: Trainer) -> list[str]:
    """The addresses of the servers of all workers; each of them lists all."""
    addresses = [address for of_worker in trainer.workers.foreach_worker(_addresses) for address in of_worker]
    if trainer.config.num_workers:
        trainer.workers.foreach_worker(_SetAddresses(addresses))
    return addresses


def learn_until_signal(
    trainer: Trainer, folder: Path, checkpoint_every_s: float, on_ready: Callable[[], Any] = lambda: None
) -> int:
    """Trains until SIGINT or SIGTERM arrives, saves a checkpoint, and returns the signal's number.

    `on_ready` is called once, when signals are waited for.
    Updates that are not finite are dropped by the learner; only ten in a row end the run.
    """
    config = trainer.config.to_json()
    config.pop("env")
    experiment = {"run": run_name(type(trainer)), "env": None, "config": config, "stop": {}}
    run = RunFolder(folder, experiment, "episode_reward_mean", KEPT_CHECKPOINTS, goes_on_after=trainer.iteration)
    saved, failures, number = trainer.iteration, 0, 0
    with run, _signals() as taken:
        last_save = time.monotonic()
        try:
            on_ready()
            while True:
                try:
                    result = trainer.train()
                except NonFiniteError as error:
                    failures += 1
                    if failures >= _MOST_FAILURES:
                        raise
                    log.warning("An update is dropped: %s", error)
                    continue
                failures = 0
                run.append(result)
                run.log_scalars(result)
                if time.monotonic() - last_save >= checkpoint_every_s:
                    run.save(trainer)
                    saved, last_save = trainer.iteration, time.monotonic()
        except SignalledError as error:
            number = int(error.args[0])
            taken.append(number)
        if trainer.iteration != saved:
            run.save(trainer)
    return number


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Raises SIGINT or SIGTERM in the main thread, wherever it waits, until the caller appends to the list it gets.

    A signal is raised again every second: where it arrives in a callback of the garbage collector or in a finalizer,
    Python ignores the exception. JAX has such a callback.
    """
    taken: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield taken
        return
    main = threading.main_thread().ident
    assert main is not None

    def send_again(number: int) -> None:
        if not taken:
            signal.pthread_kill(main, number)

    def handle(number: int, _frame: FrameType | None) -> None:
        if not taken:
            again = threading.Timer(_AGAIN_S, send_again, (number,))
            again.daemon = True
            again.start()
            raise SignalledError(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield taken
    finally:
        taken.append(0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _addresses(worker: RolloutWorker) -> list[str]:
    return worker.foreach_env(lambda env: env.address)


class _SetAddresses:
    """Sets the addresses in a worker; a class, because a closure cannot be sent to another process."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses

    def __call__(self, worker: RolloutWorker) -> None:
        worker.foreach_env(lambda env: env.set_addresses(self.addresses))
