"""Trainer classes by the names that users give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollax.algorithms.registry import get_trainer_class, refuse_incomplete
from rollax.core.importing import import_object
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer


def trainer_class_named(run: str, where: str = "--run") -> type[Trainer]:
    """Returns the trainer class that a user names: a built-in algorithm, or `module:Class` for a custom one."""
    if ":" not in run:
        return get_trainer_class(run, where)
    from rollax.algorithms.trainer import Trainer

    found = import_object(run, where)
    if not (isinstance(found, type) and issubclass(found, Trainer) and found is not Trainer):
        raise ConfigError.is_not("This", "a trainer class", where, run).expected(
            "the path of a subclass of Trainer", "name your trainer class, not its policy: --run=my_module:MyTrainer"
        )
    refuse_incomplete(found)
    return found
