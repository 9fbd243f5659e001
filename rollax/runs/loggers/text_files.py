"""`CsvLogger` and `JsonLinesLogger`: text files in the run folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

from rollax.core.atomic_files import named_write_errors, replace_file
from rollax.runs.loggers.logger import LoggedRun, Logger

CSV_NAME, JSON_LINES_NAME = "progress.csv", "metrics.jsonl"
_WHAT = "The file of a logger"


class CsvLogger(Logger):
    """Writes `progress.csv`: a row for each step, and a column for each name, empty where a step lacks the number."""

    def begin(self, run: LoggedRun) -> bool:
        self._path = run.folder / CSV_NAME
        self._columns = ["step"]
        self._row: dict[str, float] = {}
        with named_write_errors(_WHAT, self._path):
            self._rewrite([])
        return True

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        with named_write_errors(_WHAT, self._path):
            if step == self._row.get("step"):  # one row for each step
                with self._path.open("r+b") as file:
                    file.truncate(self._row_at)
            else:
                self._row = {}
            self._row = {**self._row, **numbers, "step": step}
            if added := [name for name in self._row if name not in self._columns]:
                with self._path.open(newline="", encoding="utf-8") as file:
                    before = list(csv.DictReader(file))
                self._columns += added
                self._rewrite(before)
            with self._path.open("a", newline="", encoding="utf-8") as file:
                self._row_at = file.tell()
                csv.DictWriter(file, self._columns).writerow(self._row)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self._path, text.getvalue().encode())


class JsonLinesLogger(Logger):
    """Writes `metrics.jsonl`: a flat JSON object for each call, `{"step": 100, "episode_reward_mean": 9.5, ...}`."""

    def begin(self, run: LoggedRun) -> bool:
        self._path = run.folder / JSON_LINES_NAME
        with named_write_errors(_WHAT, self._path):
            replace_file(self._path, b"")
        return True

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._append({**numbers, "step": step})

    def media(self, name: str, path: Path, step: int) -> None:
        self._append({"step": step, "name": name, "file": str(path)})

    def _append(self, line: Mapping[str, float | str]) -> None:
        with named_write_errors(_WHAT, self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
