"""`LoggerGroup`: the loggers of one run, which get the same numbers, one after another."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollax.core.atomic_files import named_write_errors, read_regular, replace_file
from rollax.core.importing import path_of
from rollax.core.storage import parsed_json
from rollax.errors import ConfigError, RollaxError, page, text_of
from rollax.runs.loggers.logger import LoggedRun, Logger, Outcome
from rollax.runs.results import flat_scalars, number_in, to_json

log = logging.getLogger("rollax.runs")

IDS_NAME, MEDIA = "loggers.json", "media"
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".mp4")
_MOST_BYTES, _ID = 1 << 20, re.compile(r"[^/\\\x00-\x1f\x7f]{1,128}")  # an id is never a path
_MOST_FAILURES = 3


class LoggerGroup:
    """Calls several loggers, so that an error of one reaches neither the others nor the training.

    If `Logger.log` or `Logger.media` raises an exception, the numbers or the file of this call are lost. The first
    exception is logged as a warning. After three exceptions in a row, the logger is not called again until the run
    ends. At the end, a warning has the number of calls that failed or were left out. A `RollaxError` of these methods
    is not caught, because it concerns a file in the run folder, whose disk may be full.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self._loggers = loggers
        self._begun: list[_Guarded] = []
        self._seen: dict[str, tuple[int, int]] = {}  # name of a file in `media` -> when it was written, and its size

    def begin(self, run: LoggedRun, earlier: Path | None, results: Iterable[Mapping[str, Any]]) -> None:
        """Begins the loggers, and keeps their ids in the run folder.

        Args:
            run: the run, without an `earlier_id`.
            earlier: the folder of the run that this one continues; None for a new run.
            results: the results before this point, which some loggers log first.
        Raises:
            ConfigError: a logger could not begin, or has an id that cannot be kept.
            RollaxError: the file of ids is damaged, or cannot be written.
        """
        before, ids = {} if earlier is None else _read_ids(earlier / IDS_NAME), {}
        for number, logger in enumerate(self._loggers):
            same = sum(type(other) is type(logger) for other in self._loggers[:number])
            key = f"{path_of(type(logger))}#{same}"
            try:
                logs_earlier = logger.begin(dataclasses.replace(run, earlier_id=before.get(key)))
            except RollaxError:
                raise
            except Exception as error:
                raise ConfigError("The logger could not begin.", type(logger).__name__, _cause(error)).expected(
                    "settings that fit, and a server that can be reached, if the logger has one",
                    f"remove the cause, log offline ({page('logging')}), or leave the logger out",
                ) from error
            self._begun.append(guarded := _Guarded(logger))
            if logger.id is not None:
                if not _is_id(logger.id):
                    raise ConfigError(
                        "The id of the logger cannot be kept.", type(logger).__name__, logger.id
                    ).expected(
                        "a text of 1 to 128 characters, without slashes and control characters", "shorten or replace it"
                    )
                ids[key] = logger.id
            for result in results if logs_earlier else ():
                guarded.call(logger.log, *_numbers_and_step(result))
        if ids or before:
            with named_write_errors("The file of ids of loggers", run.folder / IDS_NAME):
                replace_file(run.folder / IDS_NAME, to_json(ids, indent=2).encode())
        self._new_media(run.folder / MEDIA)  # marks the files of the earlier part of the run, which are logged already

    def log(self, result: Mapping[str, Any]) -> None:
        """Logs the finite numbers of a result."""
        numbers, step = _numbers_and_step(result)
        for guarded in self._begun:
            guarded.call(guarded.logger.log, numbers, step)

    def log_media(self, path: Path, step: int) -> None:
        """Logs a picture or video."""
        for guarded in self._begun:
            guarded.call(guarded.logger.media, path.stem, path, step)

    def log_folder(self, folder: Path, step: int) -> None:
        """Logs the pictures and videos in a folder that are new, or were written again."""
        for path in self._new_media(folder) if self._begun else ():
            self.log_media(path, step)

    def close(self, outcome: Outcome) -> None:
        for guarded in self._begun:
            guarded.close(outcome)
        self._begun = []

    def _new_media(self, folder: Path) -> list[Path]:
        found: list[Path] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                # Not through links: loggers send the content of files to servers.
                if not entry.name.lower().endswith(_SUFFIXES) or not entry.is_file(follow_symlinks=False):
                    continue
                stat = entry.stat(follow_symlinks=False)
                written = stat.st_mtime_ns, stat.st_size
                if not entry.name.startswith(".") and self._seen.get(entry.name) != written:
                    self._seen[entry.name] = written
                    found.append(Path(entry.path))
        return found


class _Guarded:
    """A logger that has begun, and its failures."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self._failures = self._in_a_row = 0

    def call(self, method: Callable[..., Any], *args: Any) -> None:
        if self._in_a_row >= _MOST_FAILURES:
            self._failures += 1
            return
        try:
            method(*args)
        except RollaxError:
            raise
        except Exception as error:
            self._failures, self._in_a_row = self._failures + 1, self._in_a_row + 1
            if self._failures == 1:
                log.warning("%s failed, and training goes on: %s", self._name, _cause(error))
            if self._in_a_row == _MOST_FAILURES:
                log.warning("%s failed %d times in a row, and logs nothing more.", self._name, _MOST_FAILURES)
        else:
            self._in_a_row = 0

    def close(self, outcome: Outcome) -> None:
        try:
            self.logger.close(outcome)
        except Exception as error:
            log.warning("%s could not be completed: %s", self._name, _cause(error))
        if self._failures:
            log.warning("%s lacks the numbers or files of %d failed or omitted calls.", self._name, self._failures)

    @property
    def _name(self) -> str:
        return f"The logger {type(self.logger).__name__}"


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def _numbers_and_step(result: Mapping[str, Any]) -> tuple[dict[str, float], int]:
    return dict(flat_scalars(result)), int(number_in(result, "timesteps_total") or 0)


def _read_ids(path: Path) -> dict[str, str]:
    """The ids that loggers stored in a run folder, checked because users share folders; {} without a file."""
    try:
        ids = parsed_json(read_regular(path, _MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RollaxError.damaged(path, str(error), "logger -> id", "The ids of loggers cannot be read.").fix(
            "remove the file, and the loggers begin new records"
        ) from error
    if not isinstance(ids, dict) or not all(map(_is_id, ids.values())):
        raise RollaxError.damaged(path, ids, "logger -> id").fix("remove the file, and the loggers begin new records")
    return ids


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None
