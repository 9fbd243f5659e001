"""From what a user names as a checkpoint to a trainer with its state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.errors import CheckpointError
from rollax.storage import newest

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

PREFIX = "checkpoint_"


def newest_checkpoint(path: Path) -> Path:
    """`path` itself, or its newest complete checkpoint where `path` is a run folder or the `checkpoints` in it.

    Raises:
        CheckpointError: there is no such folder, or no checkpoint in it.
    """
    if not path.is_dir():
        raise CheckpointError("No such checkpoint.", got=str(path), expected="the folder of a checkpoint or of a run")
    inside = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    found = newest(inside, PREFIX)
    if found is None and inside != path:
        raise CheckpointError("A run without a checkpoint.", where=inside, expected=f"a folder {PREFIX}…")
    return found or path


def open_trainer(checkpoint: Path, *, trust_code: bool, **changes: Any) -> Trainer:
    """The trainer that was saved, its state restored, with some config keys given anew.

    Raises:
        CheckpointError: the checkpoint is damaged or does not fit.
    """
    from rollax.algorithms.trainer import Trainer

    return Trainer.from_checkpoint(checkpoint, trust_code=trust_code, **changes)


def names_code(trainer: Trainer) -> bool:
    """Whether a checkpoint of `trainer` names code of the user's own, and so needs trust."""
    from rollax.algorithms.checkpoint import trusted_config

    try:
        trusted_config("", trainer.config.to_json(), {}, trust_code=False)
    except CheckpointError:
        return True
    return False
