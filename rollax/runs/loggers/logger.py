"""`Logger`: the interface of all loggers, and `LoggedRun`, what a logger knows about its run."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["finished", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """The run that a logger records.

    Args:
        algorithm: the algorithm, as in `rollax train --run`.
        env: the name of the environment; None if it has none.
        config: the whole config, as plain values of JSON.
        folder: the run folder, an absolute path.
        earlier_id: the `id` that this logger had in the run that this one continues; None for a new run.
    """

    algorithm: str
    env: str | None
    config: Mapping[str, Any]
    folder: Path
    earlier_id: str | None = None


class Logger(abc.ABC):
    """Records the numbers of a run; only `log` must be implemented.

    The methods are called in the process of the trainer, between two iterations, and in this order: `begin`, then `log`
    and `media` any number of times, then `close`. An exception of `begin` is raised before training begins. Later
    exceptions are logged as warnings, and training goes on; but a `RollaxError` ends training.
    """

    id: str | None = None
    """Identifies a record outside of the run folder. It is kept in the run folder for runs that continue this one.

    A text of 1 to 128 characters, without slashes and control characters.
    """

    def begin(self, run: LoggedRun) -> bool | None:  # noqa: B027 - optional, as are `media` and `close`
        """Begins the record of a run, or continues the record `run.earlier_id`.

        Returns:
            True if the record lacks the earlier results of the run that this one continues: they are logged next.
        """

    @abc.abstractmethod
    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Records finite numbers by name, such as `info/learner/default_policy/kl`.

        The evaluation at the end of a run comes in a second call with the same step.

        Args:
            numbers: name -> number.
            step: environment steps of the run so far.
        """

    def media(self, name: str, path: Path, step: int) -> None:  # noqa: B027
        """Records a picture or a video.

        Args:
            name: the file's name without its suffix.
            path: the file: .png, .jpg, .jpeg, .gif or .mp4.
            step: as in `log`.
        """

    def close(self, outcome: Outcome) -> None:  # noqa: B027
        """Completes the record; `outcome`: the run ended as planned, by a signal, or by an error."""
