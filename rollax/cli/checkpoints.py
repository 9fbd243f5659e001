"""From what a user names as an algorithm, or as a checkpoint, to its trainer."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.errors import CheckpointError, ConfigError
from rollax.importing import import_object
from rollax.runs.run_folder import CHECKPOINTS, PREFIX
from rollax.storage import newest

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


def newest_checkpoint(path: Path) -> Path:
    """`path` itself, or its newest complete checkpoint where `path` is a run folder or the `checkpoints` in it.

    Raises:
        CheckpointError: there is no such folder, or no checkpoint in it.
    """
    if not path.is_dir():
        raise CheckpointError("No such checkpoint.", got=str(path), expected="the folder of a checkpoint or of a run")
    inside = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    found = newest(inside, PREFIX)
    if found is None and inside != path:
        raise CheckpointError("A run without a checkpoint.", where=inside, expected=f"a folder {PREFIX}…")
    return found or path


def trainer_class_named(run: str) -> type[Trainer]:
    """The trainer class that `--run` names: a built-in algorithm, or `module:Class` for one of the user's own.

    Raises:
        ConfigError: no algorithm has that name, the path does not import, or it names no trainer class.
    """
    from rollax.algorithms.registry import get_trainer_class

    if ":" not in run:
        return get_trainer_class(run, "--run")
    from rollax.algorithms.trainer import Trainer

    found = import_object(run, "--run")
    if not (isinstance(found, type) and issubclass(found, Trainer) and not inspect.isabstract(found)):
        raise ConfigError("No trainer class.", where="--run", got=run, expected="the path of a subclass of Trainer")
    return found


def open_trainer(checkpoint: Path, *, run: str | None, trust_code: bool, **changes: Any) -> Trainer:
    """The trainer that was saved, its state restored, with some config keys given anew.

    Args:
        checkpoint: its folder.
        run: `module:Class` where the trainer is of a class of the user's own; the checkpoint names the others.
        trust_code: import the code that the checkpoint names.
        changes: the config keys.
    Raises:
        CheckpointError: the checkpoint is damaged or does not fit.
    """
    from rollax.algorithms.trainer import Trainer

    trainer_class = trainer_class_named(run) if run is not None and ":" in run else Trainer
    return trainer_class.from_checkpoint(checkpoint, trust_code=trust_code, **changes)


def names_code(trainer: Trainer) -> bool:
    """Whether a checkpoint of `trainer` names code of the user's own, and so needs trust."""
    from rollax.algorithms.checkpoint import refuse_untrusted

    try:
        refuse_untrusted("", trainer.config.to_json(), {}, trust_code=False)
    except CheckpointError:
        return True
    return False
