"""Trainers and trainer classes from command-line arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.core.importing import path_of
from rollax.errors import CheckpointError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


def open_trainer(checkpoint: Path, *, run: str | None, trust_code: bool, **changes: Any) -> Trainer:
    """Returns the restored trainer of a checkpoint; `run` is `module:Class` of a custom trainer, else it is ignored."""
    from rollax.algorithms.named_trainers import trainer_class_named
    from rollax.algorithms.trainer import Trainer

    trainer_class = trainer_class_named(run) if run is not None and ":" in run else Trainer
    return trainer_class.from_checkpoint(checkpoint, trust_code=trust_code, **changes)


def names_code(trainer: Trainer) -> bool:
    """Returns whether a checkpoint of `trainer` requires trust: its class or a value in its config is custom code."""
    from rollax.algorithms.checkpoint import refuse_untrusted
    from rollax.algorithms.registry import ALGORITHMS

    if ALGORITHMS.get(trainer.name) != path_of(type(trainer)):
        return True
    try:
        refuse_untrusted("", trainer.config.to_json(), {}, trust_code=False)
    except CheckpointError:
        return True
    return False
