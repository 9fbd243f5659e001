"""The folder of one training run: results, TensorBoard log, resolved config, checkpoints and learning curve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollax.cli.results import RESULTS_NAME, flat_scalars, number_in, read_results, to_json
from rollax.errors import CheckpointError, ConfigError, RollaxError

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

    from rollax.algorithms.trainer import Trainer


class RunFolder:
    """Writes what a run leaves behind; a context manager that closes its files.

    Args:
        path: an existing folder that is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_checkpoint: Path | None = None
        self._checkpointed_iteration: int | None = None
        self._results = (path / RESULTS_NAME).open("a", encoding="utf-8")
        self._tensorboard: SummaryWriter | None = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._results.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    @property
    def curve_path(self) -> Path:
        """Where the learning curve picture is."""
        return self.path / "curve.png"

    @property
    def results_path(self) -> Path:
        """Where the result lines are."""
        return self.path / RESULTS_NAME

    def write_config(self, experiment: Mapping[str, Any]) -> None:
        """Writes `config.json`; `rollax train -f config.json` repeats the run."""
        (self.path / "config.json").write_text(to_json(experiment, indent=2) + "\n", encoding="utf-8")

    def append(self, result: Mapping[str, Any]) -> None:
        """Writes one result line, on disk for other readers when this returns."""
        self._results.write(to_json(result) + "\n")
        self._results.flush()

    def log_scalars(self, result: Mapping[str, Any]) -> None:
        """Writes the numbers of `result` to the TensorBoard log, over environment steps."""
        if self._tensorboard is None:
            # Imported here: the first result must not wait for it.
            from tensorboardX import SummaryWriter

            self._tensorboard = SummaryWriter(str(self.path))
        step = int(number_in(result, "timesteps_total") or 0)
        for name, value in flat_scalars(result):
            self._tensorboard.add_scalar(name, value, step)

    def save(self, trainer: Trainer, iteration: int) -> Path:
        """Saves a checkpoint of `trainer`, unless this iteration's is saved already, and returns its folder.

        Raises:
            CheckpointError: it could not be written.
        """
        if self.last_checkpoint is None or self._checkpointed_iteration != iteration:
            try:
                path = trainer.save(str(self.path / "checkpoints"))
            except OSError as error:
                raise CheckpointError("A checkpoint was not saved.", where=str(self.path), got=str(error)) from error
            self.last_checkpoint = Path(path)
            self._checkpointed_iteration = iteration
        return self.last_checkpoint

    def inherit_results(self, checkpoint: Path) -> None:
        """Begins this run's result lines with those that led to `checkpoint`, so that its curve is whole."""
        iteration = re.search(r"\d+$", checkpoint.name)
        try:
            results, _ = read_results(checkpoint.resolve().parent.parent)
        except RollaxError:
            return
        for result in results:
            if iteration and (number_in(result, "training_iteration") or 0) <= int(iteration[0]):
                self.append(result)


def check_out(out: Path | None) -> None:
    """Refuses a folder given by the user that would mix two runs.

    Raises:
        ConfigError: it is a file, or a folder that holds something.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            "The run folder is in use.",
            where="--out",
            got=str(out),
            expected="a new or an empty folder",
            fix="give another folder, or move this one away",
        )


def make_run_folder(out: Path | None, run: str, env: str) -> Path:
    """`out`, or the next free `runs/<algorithm>-<env>-<date>-<n>`, made and empty.

    Raises:
        ConfigError: `out` is in use, or the folder cannot be made.
    """
    try:
        if out is not None:
            check_out(out)
            out.mkdir(parents=True, exist_ok=True)
            return out
        name = re.sub(r"[^\w.-]+", "-", f"{run}-{env}").strip("-.")
        today = datetime.now().astimezone().date().isoformat()
        number = 1
        while True:
            path = Path("runs") / f"{name}-{today}-{number}"
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                number += 1
    except OSError as error:
        raise ConfigError("The run folder cannot be made.", where="--out", got=str(error)) from error
