"""`ConfigHooks`: methods of a config that the library calls and extensions override."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rollax.config.field_group import FieldGroup
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.optimizers.optimizer import Optimizer
    from rollax.rollout.sampler import Sampler
    from rollax.rollout.step_recorder import StepRecorder

FINDERS_OF_ALGORITHMS: list[Callable[[str], Iterable[str]]] = []
"""Functions: key -> names of the algorithms with this key. The package of algorithms, which imports this one, adds
a function."""
Estimates = Callable[[], Mapping[str, Any]]


class ConfigHooks(FieldGroup):
    """The default of each method is for a run that learns only from its own experience, and writes none to files.

    A group of fields of an extension derives from this class, and overrides what its fields change.
    """

    in_evaluation: ClassVar[Mapping[str, Any]] = {}
    """Key -> its value in every evaluation."""
    folders: ClassVar[Mapping[str, str]] = {}
    """Key of a folder that a run writes into -> advice in errors, such as "None to write no experience"."""
    replays: ClassVar[bool] = False
    """Whether policies learn from draws of a replay buffer, as with `ReplayFields`."""
    passed_again: ClassVar[tuple[str, ...]] = ()
    """Keys that may have to be passed where a checkpoint is opened, because they are not stored, or not trusted."""

    @property
    def steps_the_env(self) -> bool:
        """Whether the environment is stepped for training, at some time of the run."""
        return True

    @property
    def is_pretrained(self) -> bool:
        """Whether policies have learned before the environment is first stepped."""
        return False

    @property
    def recording_key(self) -> str | None:
        """The name of the key by which experience is written into files; None if none is written."""
        return None

    def check(self) -> None:
        """Refuses values that contradict each other; a subclass extends it."""

    def optimizer_for(self, trainer_class: type[Trainer]) -> type[Optimizer]:
        """The optimizer class of a run, by default the trainer's `optimizer_class`."""
        return trainer_class.optimizer_class

    def with_spaces(self, where: str) -> Self:
        """This config, with the spaces of recorded data if there is no environment; ConfigError if there is neither."""
        if getattr(self, "env", None) is None:
            raise ConfigError(
                "No environment is given.",
                where=where,
                got=None,
                expected="a Gymnasium id, a registered name, a class, or a creator function",
                fix=f"{where.partition('(')[0]}(env='CartPole-v1')",
            )
        return self

    def estimates(self, trainer: Trainer) -> Estimates | None:
        """A function for evaluations that estimates policy values from data, by policy id; None without data."""
        return None

    def make_recorder(self, sampler: Sampler, worker_index: int) -> StepRecorder | None:
        """The recorder of a sampler's experience; None if none is written."""
        return None

    def for_recording(self, folder: Path, *, infos: bool) -> Self:
        """This config, changed so that experience is written into a folder, with `infos` also the info dicts.

        Raises ConfigError if there is no extension that writes.
        """
        raise ConfigError(
            "No extension that writes experience is installed.",
            where="record(...)",
            got=str(folder),
            expected="rollax with all of its packages",
            fix="install rollax again",
        )

    def for_workers(self) -> Self:
        """This config, with absolute paths, because a worker may have another current folder."""
        return self
