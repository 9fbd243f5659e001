"""Ray Tune: any trainer as a `ray.tune.Trainable`. Requires the extra `ray-tune`.

`rollax tune`, which needs no Ray, is in `rollax.tune`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rollax.algorithms.evaluator import evaluation_result
from rollax.algorithms.registry import get_trainer_class
from rollax.algorithms.trainer import Trainer
from rollax.config import TrainerConfig, resolve_config
from rollax.core import storage
from rollax.core.atomic_files import read_regular
from rollax.core.stored_values import as_text
from rollax.env.registrations import Registrations, register_all, registrations
from rollax.errors import CheckpointError, ConfigError, RollaxError, not_installed
from rollax.processes.cluster import refuse_lacking, started_here
from rollax.processes.settings import process_settings
from rollax.runs.results import to_json
from rollax.runs.run_folder import PREFIX

try:
    import ray
    from ray import cloudpickle
    from ray.tune import PlacementGroupFactory, Trainable
except ImportError as error:
    package = "ray with its extra tune"
    raise not_installed("Ray Tune", error, where="import rollax.ray_tune", package=package, extra="ray-tune") from error

_EVALUATION, _MOST_BYTES = "evaluation.json", 64 << 20
"""The file of the last evaluation, which the results repeat until the next one, and the most bytes that are read."""
_LEAST = {"CPU": 0.001}
_TOO_LARGE = {"CPU": 0.002}
"""The bundle of a trial that would reserve more than the cluster has; that trial only raises an error."""


class TunedTrainer(Trainable):
    """One trial of Tune: the `trainer` built from the trial's config, in the trial's process."""

    trainer_class: ClassVar[type[Trainer]]
    registered: ClassVar[Registrations]
    trainer: Trainer | None = None

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Returns one bundle for the driver and one per worker.

        A trial with a wrong config, or one that would wait forever because it needs more than a local cluster has,
        reserves little and raises the error itself, so that only this trial fails.
        """
        try:
            request = _reserved(resolve_config(cls.trainer_class.config_class, config))
        except RollaxError:
            return _reserved(TrainerConfig())
        try:
            if ray.is_initialized() and started_here(ray):
                _refuse_lacking(request)
        except ConfigError:
            return PlacementGroupFactory([_TOO_LARGE])
        return request

    def setup(self, config: dict[str, Any]) -> None:
        """Builds the trainer; Tune calls this once per process."""
        register_all(self.registered)
        if self.trial_resources is not None:
            bundles = self.trial_resources.bundles
            if bundles == [_TOO_LARGE]:
                _refuse_lacking(_reserved(resolve_config(self.trainer_class.config_class, config)))
            keep_to_reserved({} if self.trial_resources.head_bundle_is_empty else bundles[0])
        self._build(config)

    def step(self) -> dict[str, Any]:
        """Returns the result of one `Trainer.train` as plain values, with the same keys in every iteration."""
        assert self.trainer is not None
        result = self.trainer.train()
        if result["evaluation"] is not None:
            self._evaluation = result["evaluation"]
        return plain({**result, "evaluation": self._evaluation})

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        assert self.trainer is not None
        self.trainer.save(checkpoint_dir)
        (Path(checkpoint_dir) / _EVALUATION).write_text(to_json(self._evaluation), encoding="utf-8")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Restores weights, optimizer, counters and last evaluation; the hyperparameters of the config are kept."""
        assert self.trainer is not None
        evaluation = _stored_evaluation(Path(checkpoint) / _EVALUATION)
        self.trainer.restore(checkpoint_in(checkpoint))
        if self._evaluation is not None:
            self._evaluation = {**self._evaluation, **evaluation}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._build(new_config)
        return True

    def cleanup(self) -> None:
        if self.trainer is not None:
            self.trainer.stop()
            self.trainer = None

    def _build(self, config: dict[str, Any]) -> None:
        self.trainer = self.trainer_class(config=config)
        # Tune's tables have the columns of the first result, and schedulers require their metric in every result.
        self._evaluation = evaluation_result([]) if self.trainer.config.evaluation_interval else None


def _reserved(config: TrainerConfig) -> PlacementGroupFactory:
    worker = {"CPU": config.num_cpus_per_worker, "GPU": config.num_gpus_per_worker}
    worker |= config.custom_resources_per_worker
    driver = {"CPU": config.num_cpus_for_driver, "GPU": config.num_gpus}
    # Ray accepts neither an empty placement group nor an empty bundle.
    count = config.num_workers + config.evaluation_num_workers
    workers = [worker] * count if any(worker.values()) else []
    return PlacementGroupFactory([driver, *workers] if workers or any(driver.values()) else [_LEAST])


def _refuse_lacking(request: PlacementGroupFactory) -> None:
    refuse_lacking(
        ray,
        request.required_resources,
        what="The trial reserves more resources than the cluster has.",
        where="config keys 'num_cpus_for_driver', 'num_gpus', 'num_workers', "
        "'evaluation_num_workers', 'num_cpus_per_worker', 'num_gpus_per_worker', 'custom_resources_per_worker'",
        fix="lower them (fractions share cores), or connect to a larger cluster with ray.init(address=...)",
    )


def trainable(algorithm: str | type[Trainer]) -> type[TunedTrainer]:
    """Returns a `Trainable` for `ray.tune.Tuner`, named after the algorithm.

    `algorithm` is the name of a built-in algorithm, or a trainer class. A trial's config is the trainer's config, with
    the key `env`. Environments that were registered before, with rollax or Gymnasium, are available in the processes of
    the trials.
    """
    trainer_class = get_trainer_class(algorithm) if isinstance(algorithm, str) else algorithm
    registered = registrations(cloudpickle.dumps)  # pyright: ignore[reportPrivateImportUsage]
    return type(trainer_class.name, (TunedTrainer,), {"trainer_class": trainer_class, "registered": registered})


def checkpoint_in(folder: str | Path) -> Path:
    """Returns the trainer's checkpoint in the folder of a Tune checkpoint, such as `result.checkpoint.path`."""
    found = storage.newest(folder, PREFIX)
    if found is None:
        raise CheckpointError("The folder contains no checkpoint of a trainer.", str(folder)).expected(
            f"a folder {PREFIX}… in it",
            "pass the folder of a checkpoint that Tune saved for a trial of rollax.ray_tune.trainable(...)",
        )
    return found


def _stored_evaluation(file: Path) -> dict[str, Any]:
    """The evaluation in a checkpoint; empty if there was none, or if a trainer without Tune saved the checkpoint."""
    try:
        stored = storage.from_json_bytes(read_regular(file, _MOST_BYTES), str(file))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError.damaged(str(file), error.strerror, "a file that can be read") from error
    if stored is not None and not (isinstance(stored, dict) and stored.keys() <= evaluation_result([]).keys()):
        raise CheckpointError.damaged(str(file), as_text(stored), f"the keys {sorted(evaluation_result([]))}")
    return stored or {}


def plain(value: Any) -> Any:
    """Returns a result with plain Python types, and NaN for None, because Tune compares and multiplies metrics."""
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
    """Limits JAX to the bundle that the trial's process reserves, before its backend starts; user's settings are kept.

    Ray does not hide accelerators from a process that reserves none, and JAX would allocate the first one's memory.
    """
    import jax

    gpus = bundle.get("GPU", 0.0)
    if gpus:
        share = process_settings(gpus)["XLA_PYTHON_CLIENT_MEM_FRACTION"]
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    elif not bundle.get("TPU") and "JAX_PLATFORMS" not in os.environ:
        # JAX read the variable when it was imported, so the setting is changed too.
        jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("NPROC", str(max(int(bundle.get("CPU", 0.0)), 1)))
