"""A run that serves while it learns, until a signal ends it; it continues from the newest checkpoint of its folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rollax.algorithms.registry import run_name
from rollax.algorithms.trainer import Trainer
from rollax.core.cleanup import cleanup_on_error
from rollax.core.storage import newest
from rollax.errors import NonFiniteError
from rollax.rollout.worker import RolloutWorker
from rollax.runs.experiment import merged
from rollax.runs.interrupts import StopRequest
from rollax.runs.loggers.table import DEFAULT_LOGGERS, make_loggers
from rollax.runs.run_folder import CHECKPOINTS, PREFIX, RunFolder, check_empty
from rollax.runs.run_lock import RunLock
from rollax.serving.policy_server_env import MultiAgentPolicyServerEnv, PolicyServerEnv

log = logging.getLogger("rollax.serving")

KEPT_CHECKPOINTS = 3
_SECONDS_PER_ITERATION = 2.0
_MOST_FAILURES = 10


def make_learning_trainer(
    trainer_class: type[Trainer], config: Mapping[str, Any], env_config: Mapping[str, Any], folder: Path
) -> Trainer:
    """A trainer whose environment is a policy server, restored from the newest checkpoint in `folder` if there is one.

    The default `env` is PolicyServerEnv, or MultiAgentPolicyServerEnv with `multiagent` policies; the key `env_config`
    of `config` overrides the argument.

    Raises:
        ConfigError: the folder, which the caller has locked, has no checkpoint, and is not empty.
    """
    found = newest(folder / CHECKPOINTS, PREFIX)
    if found is None:
        check_empty(folder, "--out", "", held=True)
    several = bool((config.get("multiagent") or {}).get("policies"))
    defaults = {
        "env": MultiAgentPolicyServerEnv if several else PolicyServerEnv,
        "min_time_s_per_iteration": _SECONDS_PER_ITERATION,
    }
    settings = merged({**env_config, "run_folder": str(folder)}, config.get("env_config", {}))
    trainer = trainer_class(config={**defaults, **config, "env_config": settings})
    with cleanup_on_error(trainer.stop):
        if found is not None:
            trainer.restore(found)
    return trainer


def addresses_of(trainer: Trainer) -> list[str]:
    """Returns the addresses of all workers' servers; with remote workers, each server gets this list for `hello`."""
    addresses = [address for of_worker in trainer.workers.foreach_worker(_addresses) for address in of_worker]
    if trainer.config.num_workers:
        trainer.workers.foreach_worker(partial(_set_addresses, addresses))
    return addresses


def learn_until_signal(
    trainer: Trainer, lock: RunLock, checkpoint_frequency_s: float, on_ready: Callable[[], Any] = lambda: None
) -> int:
    """Trains until SIGINT or SIGTERM arrives, saves a checkpoint, and returns the signal's number.

    A new run also saves one before it trains.

    A second signal raises `Interrupted`. `on_ready` is called once the signal handlers are set. The learner drops
    updates that are not finite; only ten in a row end the run. At the end the lock of the run's folder is released.
    """
    config = trainer.config.to_json()
    config.pop("env")
    experiment = {"run": run_name(type(trainer)), "env": None, "config": config, "stop": {}}
    run = RunFolder(lock.folder, experiment, None, KEPT_CHECKPOINTS, continues_after=trainer.iteration, lock=lock)
    saved, failures = trainer.iteration, 0
    with run, StopRequest(trainer.stop_waiting) as request:
        run.begin_logging(make_loggers(DEFAULT_LOGGERS, "rollax serve", trusted=True), lock.folder)
        if trainer.recorded_in is None:  # a run that is killed from here on continues
            run.save(trainer)
        last_save = time.monotonic()
        on_ready()
        while request.signal is None:
            try:
                result = trainer.train()
            except NonFiniteError as error:
                failures += 1
                if failures >= _MOST_FAILURES:
                    raise
                log.warning("An update was dropped: %s", error)
                continue
            failures = 0
            run.append(result)
            run.log(result)
            if time.monotonic() - last_save >= checkpoint_frequency_s:
                run.save(trainer)
                saved, last_save = trainer.iteration, time.monotonic()
        if trainer.iteration != saved:
            run.save(trainer)
    return request.signal


def _addresses(worker: RolloutWorker) -> list[str]:
    return worker.foreach_env(lambda env: env.address)


def _set_addresses(addresses: list[str], worker: RolloutWorker) -> None:
    worker.foreach_env(lambda env: env.set_addresses(addresses))
