"""The folder of one training run: results, config, checkpoints, best model, learning curve, and its loggers."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rollax.core import storage
from rollax.core.atomic_files import named_write_errors, read_regular, replace_file
from rollax.core.cleanup import cleanup_on_error
from rollax.core.storage import parsed_json
from rollax.errors import CheckpointError, ConfigError, RollaxError, text_of
from rollax.runs.display import title_of
from rollax.runs.loggers.group import IDS_NAME, MEDIA, LoggerGroup
from rollax.runs.loggers.logger import LoggedRun, Logger, Outcome
from rollax.runs.results import (
    RESULTS_NAME,
    WHERE_IN_RESULT,
    draw_curves,
    number_in,
    read_lines,
    read_results,
    refuse_seeds_folder,
    results_until,
    to_json,
)
from rollax.runs.run_lock import LOCK_NAME, RunLock, refuse_used

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer

log = logging.getLogger("rollax.runs")

CONFIG, CHECKPOINTS, BEST, CURVE = "config.json", "checkpoints", "best", "curve.png"
SCORE = "best.json"
"""The file with the score of the best model. In the results, the final evaluation may have taken its place."""
CANDIDATE = "candidate"
"""The folder of a model that is evaluated while training goes on."""
PREFIX = "checkpoint_"
_WHERE, _WHAT = "fit(out=...)", "A file of the run"
LOOKS_AT_TRAINING = 10
"""Iterations between two comparisons of the training reward with the best one.

Many iterations improve the reward a little, and each improvement that is noticed saves a model.
"""


class RunFolder:
    """The record of a run on disk, a context manager around training.

    Args:
        path: the folder, which is locked until the block ends.
        experiment: the content of `config.json`, with the keys run, env, config and stop.
        best_by: the key of `WHERE_IN_RESULT` that determines the best model; None to save no best model.
        keep_checkpoints: number of newest checkpoints to keep; None for all.
        continues_after: the iteration after which the run in the folder is continued. Later results are dropped, and
            the best model so far stays the best until a better one is saved. None for a new run.
        lock: the lock of the folder; None for a new lock.
    Raises:
        ConfigError: the folder is in use, not writable, has links in the place of a run's files, or is not empty for a
            new run.
    """

    def __init__(
        self,
        path: Path,
        experiment: Mapping[str, Any],
        best_by: str | None,
        keep_checkpoints: int | None,
        *,
        continues_after: int | None = None,
        lock: RunLock | None = None,
    ) -> None:
        if continues_after is None:
            check_empty(path, _WHERE, "Trainer.from_checkpoint(newest).fit(..., out=this_folder)")
        self._lock = RunLock(path, _WHERE) if lock is None else lock
        self.path = self._lock.folder
        self._checkpoint: Path | None = None
        self._best: Path | None = None
        self._candidate: Path | None = None
        self._best_score = -math.inf
        self._title = title_of(experiment["run"], experiment["env"])
        self._best_by, self._keep = best_by, keep_checkpoints
        self._experiment, self._loggers = experiment, LoggerGroup(())
        self.interrupted = False
        """Whether a signal ends the run; `close` of the loggers gets this information."""
        with cleanup_on_error(self._lock.release):
            self._results: IO[bytes] = self._begun(experiment, continues_after)
        self._opened = os.fstat(self._results.fileno())
        self._last_line = self._results.tell()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        interrupted = self.interrupted or (kind is not None and issubclass(kind, KeyboardInterrupt))
        outcome: Outcome = "interrupted" if interrupted else "finished" if kind is None else "failed"
        try:
            with suppress(OSError):  # already raised by `append`
                self._results.close()
            if self._is_there():
                self._draw_curve()
        finally:
            try:
                self._loggers.close(outcome)
            finally:
                self._lock.release()

    def inherit(self, run: Path, iteration: int) -> None:
        """Copies the result lines of another run up to an iteration, so that the curve is complete."""
        for result in results_until(run, iteration):
            self.append(result)

    def begin_logging(self, loggers: Sequence[Logger], earlier: Path | None = None) -> None:
        """Begins the loggers of the run; `earlier` is the folder of the run that this one continues.

        Raises:
            RollaxError: a logger could not begin; ConfigError, if the cause is not a file of the run folder.
        """
        self._loggers = LoggerGroup(loggers)
        config = parsed_json(to_json(self._experiment["config"]))
        run = LoggedRun(self._experiment["run"], self._experiment["env"], config, self.path.resolve())
        self._loggers.begin(run, earlier, read_lines(self.path / RESULTS_NAME)[0])

    def append(self, result: Mapping[str, Any]) -> None:
        """Writes one result line and flushes the file."""
        self._check_there()
        line = _line(result)  # outside the block: its errors are not errors of the disk
        with named_write_errors(_WHAT, self.path / RESULTS_NAME):
            self._last_line = self._results.tell()
            self._results.write(line)
            self._results.flush()

    def amend(self, result: Mapping[str, Any]) -> None:
        """Replaces the last result line by the completed result; if the disk is full, the line stays."""
        self._check_there()
        path, line = self.path / RESULTS_NAME, _line(result)
        with named_write_errors(_WHAT, path):
            with path.open("rb") as file:
                earlier = file.read(self._last_line)
            replace_file(path, earlier + line)
            self._results.close()
            self._results = path.open("ab")
        self._opened = os.fstat(self._results.fileno())
        # The other numbers of this step are logged already.
        self._loggers.log({"timesteps_total": result.get("timesteps_total"), "evaluation": result.get("evaluation")})

    def log(self, result: Mapping[str, Any]) -> None:
        """Gives the loggers the numbers of `result`, and the pictures and videos that are new in `media`."""
        self._loggers.log(result)
        self._loggers.log_folder(self.path / MEDIA, int(number_in(result, "timesteps_total") or 0))

    def save(self, trainer: Trainer) -> None:
        """Saves a checkpoint of this iteration, unless there is one, and removes outdated ones."""
        self._check_there()
        if self._checkpoint is not None and iteration_of(self._checkpoint) == trainer.iteration:
            return
        self._checkpoint = _saved(trainer, self.path / CHECKPOINTS)
        if self._keep is not None:
            _keep_newest(self.path / CHECKPOINTS, self._keep)

    def save_candidate(self, trainer: Trainer) -> None:
        """Saves the model that the next iteration evaluates while it trains, for `keep_best` after it."""
        if self._best_by is not None:
            self._check_there()
            self._candidate = _saved(trainer, self.path / CANDIDATE)

    def keep_best(self, trainer: Trainer, result: Mapping[str, Any], *, saved: bool) -> None:
        """Saves a best checkpoint if `result` is the best so far; `saved`: this iteration has a checkpoint.

        After `save_candidate` the result belongs to the candidate.
        """
        if self._best_by is None:
            return
        candidate, self._candidate = self._candidate, None
        looks = self._best_by == "evaluation_reward_mean" or saved or trainer.iteration % LOOKS_AT_TRAINING == 0
        score = number_in(result, *WHERE_IN_RESULT[self._best_by]) if looks else None
        if score is not None and score > self._best_score:
            self._check_there()
            # A run that is killed before `_keep_newest` leaves two checkpoints; the newest counts as the best.
            best = self.path / BEST
            self._best = _saved(trainer, best) if candidate is None else _moved(candidate, best)
            self._best_score = score
            noted = {"checkpoint": self._best.name, "by": self._best_by, "score": score}
            with named_write_errors(_WHAT, self.path / SCORE):
                replace_file(self.path / SCORE, (to_json(noted) + "\n").encode())
            _keep_newest(best, 1)
        if candidate is not None:
            storage.remove_directory(self.path / CANDIDATE)

    def outcome(self) -> dict[str, Any]:
        """Returns the fields of `FitResult` about files: folder, last and best checkpoint, and the best score."""
        score = None if self._best is None else self._best_score
        return {"out": self.path, "checkpoint": self._checkpoint, "best_checkpoint": self._best, "best_score": score}

    def _is_there(self) -> bool:
        """Whether the open file of results is still in its place; else the folder was removed or another run has it."""
        try:
            return os.path.samestat(self._opened, os.stat(self.path / RESULTS_NAME, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # for example without the permissions: writing then raises the error
            return True

    def _check_there(self) -> None:
        if not self._is_there():
            raise RollaxError(
                "The run folder was removed or replaced while the run was writing into it.",
                str(self.path),
                f"{RESULTS_NAME} is not the file that this run writes",
            ).expected(
                "the folder as the run has left it",
                "leave the folder in place; trainer.save(another_folder) still saves the trainer of this process",
            )

    def _begun(self, experiment: Mapping[str, Any], continues_after: int | None) -> IO[bytes]:
        """Writes the config, and returns the open file of results."""
        results = self.path / RESULTS_NAME
        _refuse_links(self.path)
        if continues_after is not None and results.exists():
            self._find_best()
            if (self.path / CANDIDATE).exists():  # of a run that was killed while it evaluated
                storage.remove_directory(self.path / CANDIDATE)
            _remove_results_after(self.path, continues_after)
        with named_write_errors(_WHAT, self.path / CONFIG):
            replace_file(self.path / CONFIG, (to_json(experiment, indent=2) + "\n").encode())
        with named_write_errors(_WHAT, results):  # opened last, because nothing would close it if the rest failed
            return results.open("ab")

    def _find_best(self) -> None:
        """Reads the best model so far, and its score, from a folder whose run is continued."""
        best = storage.newest(self.path / BEST, PREFIX)
        if best is None or self._best_by is None:
            return
        with suppress(OSError, ValueError, KeyError, TypeError):  # not written, or damaged
            noted = parsed_json(read_regular(self.path / SCORE, 4096))
            if (noted["checkpoint"], noted["by"]) == (best.name, self._best_by):
                self._best, self._best_score = best, float(noted["score"])
                return
        by_iteration = {number_in(line, "training_iteration"): line for line in read_lines(self.path / RESULTS_NAME)[0]}
        score = number_in(by_iteration.get(iteration_of(best), {}), *WHERE_IN_RESULT[self._best_by])
        if score is not None:
            self._best, self._best_score = best, score

    def _draw_curve(self) -> None:
        """Draws the learning curve, if there are results; a failure is only printed, so that training ends normally."""
        try:
            results, _ = read_results(self.path)
            draw_curves({"training episodes": results}, self.path / CURVE, self._title)
            self._loggers.log_media(self.path / CURVE, int(number_in(results[-1], "timesteps_total") or 0))
        except RollaxError:
            return
        except OSError as error:
            with suppress(OSError):
                (self.path / CURVE).unlink()  # it would be a part of a picture
            with suppress(OSError):  # a full disk may hold the file of stderr too
                print(f"The learning curve was not drawn: {error}", file=sys.stderr)


def iteration_of(checkpoint: Path) -> int:
    """Returns the iteration in the name of a checkpoint of a run folder."""
    return int(checkpoint.name.removeprefix(PREFIX))


def newest_saved(run: Path) -> Path | None:
    """Returns the newest complete checkpoint of a run folder, or None.

    A killed run may have saved its best model after its last other checkpoint.
    """
    found = [storage.newest(run / folder, PREFIX) for folder in (CHECKPOINTS, BEST)]
    return max((path for path in found if path is not None), key=iteration_of, default=None)


def newest_checkpoint(path: Path) -> Path:
    """Returns `path` if it is a checkpoint, else the newest complete checkpoint in this folder of checkpoints or run.

    Raises:
        CheckpointError: there is no such folder, or it has no checkpoint, or it is a folder of several seeds.
    """
    if not os.path.isdir(path):
        what, got = "The checkpoint does not exist.", "no such folder"
        if os.path.isfile(path):
            what, got = "The checkpoint is a file, not a folder.", "a file"
        raise CheckpointError(what, str(path), got).expected(
            "the folder of a checkpoint or of a run", "check the path; a relative path starts at the current folder"
        )
    if os.path.isfile(path / storage.MANIFEST):
        return path
    found = newest_saved(path) or storage.newest(path, PREFIX)
    if found is not None:
        return found
    if os.path.isdir(path / CHECKPOINTS) or os.path.exists(path / RESULTS_NAME):
        fix = "pass another run; `rollax train --checkpoint-frequency=1` saves one after every iteration"
        raise CheckpointError("The run has no checkpoint.", where=path, expected=f"a folder {PREFIX}…", fix=fix)
    refuse_seeds_folder(path, CheckpointError)
    storage.read_manifest(path)  # its error says what is missing
    return path


def is_continued(path: Path, recorded_in: tuple[Path, int] | None, iteration: int) -> bool:
    """Whether a trainer at this iteration, with these results (`Trainer.recorded_in`), continues the run in a folder.

    Raises:
        ConfigError: the trainer continues the run, but the folder has a later checkpoint.
    """
    if recorded_in is None or recorded_in[0] != path.resolve() or not (path / RESULTS_NAME).exists():
        return False
    newest = newest_saved(path)
    if newest is not None and iteration_of(newest) > iteration:
        raise ConfigError(
            "The run in the folder has a later checkpoint, and continuing would drop its later results.",
            _WHERE,
            f"{newest}, and a trainer at iteration {iteration}",
        ).expected(
            "a trainer from the newest checkpoint, or a new folder", "restore that checkpoint, or choose another folder"
        )
    return True


def check_empty(path: Path, where: str, go_on: str, *, held: bool = False) -> None:
    """Raises ConfigError for a file, a folder that another run uses, or a folder that is not empty.

    `go_on` is the command that continues the run in the folder. A lock that a killed process left behind does not
    count. `held`: the caller has the lock.
    """
    if not held:
        refuse_used(path, where)
    if not os.path.exists(path):
        return
    with named_write_errors(_WHAT, path):
        if path.is_dir() and {LOCK_NAME}.issuperset(os.listdir(path)):
            return
    found, more = "is not empty" if path.is_dir() else "is a file", ""
    if (path / RESULTS_NAME).exists():
        found = "contains another run"
        if storage.newest(path / CHECKPOINTS, PREFIX) is not None:
            more = f"; {go_on} continues that run"
        elif (best := storage.newest(path / BEST, PREFIX)) is not None:
            more = f"; its best model is in {best}"
        else:
            found, more = "contains a run that has saved nothing", ", or remove it"
    raise ConfigError(f"The folder {found}.", where, str(path)).expected(
        "a new folder, or an empty one", f"choose another folder{more}"
    )


def _refuse_links(folder: Path) -> None:
    """Refuses a folder in which a run would write or remove files of other folders, through links in it."""
    for name in (CONFIG, RESULTS_NAME, CHECKPOINTS, BEST, SCORE, CANDIDATE, CURVE, IDS_NAME):
        if (folder / name).is_symlink():
            raise ConfigError(
                "The run folder contains a link to another place, where the run would write or remove files.",
                where=_WHERE,
                got=f"{folder / name} -> {os.readlink(folder / name)}",
                expected="files and folders in the run folder itself",
                fix="replace the link by what it leads to, or choose another folder",
            )


def _line(result: Mapping[str, Any]) -> bytes:
    return to_json(result).encode() + b"\n"


def _remove_results_after(folder: Path, iteration: int) -> None:
    """Drops the result lines of later iterations, and an incomplete last line."""
    kept = [r for r in read_lines(folder / RESULTS_NAME)[0] if (number_in(r, "training_iteration") or 0) <= iteration]
    with named_write_errors(_WHAT, folder / RESULTS_NAME):
        replace_file(folder / RESULTS_NAME, b"".join(map(_line, kept)))


def _saved(trainer: Trainer, folder: Path) -> Path:
    try:
        return Path(trainer.save(folder))
    except OSError as error:
        fix = "free some space on the disk, or check the permissions of the folder"
        got = text_of(error)  # the error may have a user's class
        raise CheckpointError("The checkpoint was not saved.", where=str(folder), got=got, fix=fix) from error


def _moved(checkpoint: Path, folder: Path) -> Path:
    """Moves a checkpoint into a folder, unless the folder already has the same checkpoint."""
    moved = folder / checkpoint.name
    if not moved.exists():
        with named_write_errors(_WHAT, folder):
            folder.mkdir(exist_ok=True)
            checkpoint.replace(moved)
    return moved


def _keep_newest(folder: Path, count: int) -> None:
    named = re.compile(re.escape(PREFIX) + r"(\d+)", re.ASCII)
    found = sorted((int(match[1]), path) for path in folder.iterdir() if (match := named.fullmatch(path.name)))
    for _, path in found[:-count]:
        try:
            storage.remove_directory(path)
        except CheckpointError as error:
            log.warning("%s", error)  # no data is lost, and the next save tries again
