"""The face of Ray Tune: any trainer as a `ray.tune.Trainable`. It needs the extra `tune`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rollax import storage
from rollax.algorithms.registry import get_trainer_class
from rollax.algorithms.trainer import Trainer, evaluation_result
from rollax.config import TrainerConfig, resolve_config
from rollax.env.registry import Registrations, register_all, registrations
from rollax.errors import CheckpointError, ConfigError, RollaxError
from rollax.evaluation.actor_class import process_settings

try:
    from ray import cloudpickle
    from ray.tune import PlacementGroupFactory, Trainable
except ImportError as error:
    raise ConfigError(
        "Ray Tune is not installed.",
        where="import rollax.tune",
        got=str(error),
        expected="the package ray with its extra tune",
        fix="pip install 'rollax[tune]'",
    ) from error

_CHECKPOINT_PREFIX = "checkpoint_"


class TunedTrainer(Trainable):
    """One trial of Tune: a trainer, built from the trial's config, in the process that Tune gives it.

    `trainable` makes the subclass for an algorithm.

    Attributes:
        trainer: what trains.
    """

    trainer_class: ClassVar[type[Trainer]]
    registered: ClassVar[Registrations]
    trainer: Trainer | None = None

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """What Tune reserves for a trial: a bundle for the process that learns, and one for each worker."""
        try:
            resolved = resolve_config(cls.trainer_class.config_class, config)
        except RollaxError:
            # The trial says what is wrong, so that it is told as the error of this trial and the others go on.
            resolved = TrainerConfig()
        worker = {
            "CPU": resolved.num_cpus_per_worker,
            "GPU": resolved.num_gpus_per_worker,
            **resolved.custom_resources_per_worker,
        }
        driver = {"CPU": resolved.num_cpus_for_driver, "GPU": resolved.num_gpus}
        # Ray knows no placement group without anything in it, nor a bundle.
        workers = [worker] * resolved.num_workers if any(worker.values()) else []
        return PlacementGroupFactory([driver, *workers] if workers or any(driver.values()) else [{"CPU": 0.001}])

    def setup(self, config: dict[str, Any]) -> None:
        """Builds the trainer; Tune calls it once in a process."""
        register_all(self.registered)
        if self.trial_resources is not None:
            bundles = self.trial_resources.bundles
            keep_to_reserved({} if self.trial_resources.head_bundle_is_empty else bundles[0])
        self._build(config)

    def step(self) -> dict[str, Any]:
        """The result of one `Trainer.train`: plain values, with the same keys in every iteration."""
        assert self.trainer is not None
        result = self.trainer.train()
        if result["evaluation"] is not None:
            self._evaluation = result["evaluation"]
        return plain({**result, "evaluation": self._evaluation})

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Puts a checkpoint of the trainer into Tune's folder."""
        assert self.trainer is not None
        self.trainer.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Takes over weights, optimizer and counters; the hyperparameters stay those of the trial's config."""
        assert self.trainer is not None
        self.trainer.restore(checkpoint_in(checkpoint))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Builds the trainer anew, for another trial or other hyperparameters."""
        self.cleanup()
        self._build(new_config)
        return True

    def cleanup(self) -> None:
        """Closes the environments and ends the worker processes."""
        if self.trainer is not None:
            self.trainer.stop()
            self.trainer = None

    def _build(self, config: dict[str, Any]) -> None:
        self.trainer = self.trainer_class(config=config)
        # Tune's tables have the columns of the first result, and schedulers want their metric in every one.
        self._evaluation = evaluation_result([]) if self.trainer.config.evaluation_interval else None


def trainable(algorithm: str | type[Trainer]) -> type[TunedTrainer]:
    """The class that `ray.tune.Tuner` takes, named after the algorithm.

    Args:
        algorithm: the name of a built-in one, or a trainer class.
    Returns:
        A `Trainable` whose config is that of the trainer, with `env` in it. Environments registered up to now, here or
        with Gymnasium, are known in the trials' processes.
    Raises:
        ConfigError: no algorithm has that name.
    """
    trainer_class = get_trainer_class(algorithm) if isinstance(algorithm, str) else algorithm
    registered = registrations(cloudpickle.dumps)  # pyright: ignore[reportPrivateImportUsage]
    return type(trainer_class.name, (TunedTrainer,), {"trainer_class": trainer_class, "registered": registered})


def checkpoint_in(folder: str | Path) -> Path:
    """The checkpoint that a trainer saved, inside of the folder of a checkpoint of Tune.

    Args:
        folder: such as `result.checkpoint.path`, or what `result.checkpoint.as_directory()` gives.
    Raises:
        CheckpointError: there is none.
    """
    found = storage.newest(folder, _CHECKPOINT_PREFIX)
    if found is None:
        raise CheckpointError(
            "No checkpoint of a trainer.",
            where=str(folder),
            expected=f"a folder {_CHECKPOINT_PREFIX}… in it",
            fix="give the folder of a checkpoint that Tune made of a trial of rollax.tune.trainable(...)",
        )
    return found


def plain(value: Any) -> Any:
    """A result as Tune's loggers and schedulers take it: Python's own types, and NaN for None.

    A mean over nothing is None in rollax; Tune compares and multiplies metrics, so it must be a number there.
    """
    if value is None:
        return float("nan")
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist())
    return value if isinstance(value, bool | int | float | str) else str(value)


def keep_to_reserved(bundle: Mapping[str, float]) -> None:
    """Settles, before JAX's backend starts, that a trial uses what it has reserved; a user's own settings stand.

    Ray hides no accelerator from a process that reserves none, and JAX would take the memory of the first that it sees.

    Args:
        bundle: the resources reserved for the process of the trial.
    """
    import jax

    gpus = bundle.get("GPU", 0.0)
    if gpus:
        share = process_settings(gpus)["XLA_PYTHON_CLIENT_MEM_FRACTION"]
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    elif not bundle.get("TPU") and "JAX_PLATFORMS" not in os.environ:
        # JAX reads the variable when it is imported, which it is already.
        jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("NPROC", str(max(int(bundle.get("CPU", 0.0)), 1)))
