"""Trainers and trainer classes from command-line arguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.algorithms.named_trainers import trainer_class_named
from rollax.core.importing import path_of
from rollax.core.storage import newest
from rollax.errors import CheckpointError
from rollax.runs.results import RESULTS_NAME
from rollax.runs.run_folder import CHECKPOINTS, PREFIX, newest_saved

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


def newest_checkpoint(path: Path) -> Path:
    """Returns the newest complete checkpoint in a run folder or its folder `checkpoints`, or else `path` itself."""
    if not os.path.isdir(path):
        raise CheckpointError("The checkpoint does not exist.", None, str(path)).expected(
            "the folder of a checkpoint or of a run", "check the path; a relative path starts at the current folder"
        )
    found = newest_saved(path) or newest(path, PREFIX)
    if found is None and (os.path.isdir(path / CHECKPOINTS) or os.path.exists(path / RESULTS_NAME)):
        fix = "pass another run; `rollax train --checkpoint-frequency=1` saves one after every iteration"
        raise CheckpointError("The run has no checkpoint.", where=path, expected=f"a folder {PREFIX}…", fix=fix)
    return found or path


def open_trainer(checkpoint: Path, *, run: str | None, trust_code: bool, **changes: Any) -> Trainer:
    """Returns the restored trainer of a checkpoint; `run` is `module:Class` of a custom trainer."""
    from rollax.algorithms.trainer import Trainer

    trainer_class = trainer_class_named(run) if run is not None and ":" in run else Trainer
    return trainer_class.from_checkpoint(checkpoint, trust_code=trust_code, **changes)


def names_code(trainer: Trainer) -> bool:
    """Returns whether a checkpoint of `trainer` refers to custom code, including its class, which requires trust."""
    from rollax.algorithms.checkpoint import refuse_untrusted
    from rollax.algorithms.registry import ALGORITHMS

    if ALGORITHMS.get(trainer.name) != path_of(type(trainer)):
        return True
    try:
        refuse_untrusted("", trainer.config.to_json(), {}, trust_code=False)
    except CheckpointError:
        return True
    return False
