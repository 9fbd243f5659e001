"""CSV logs: one row per step; settings name the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core import trees
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import ConfigError, DatasetError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import FormatReader, Ids, check_setting, columns_of, decoding, lines_of
from rollax.offline.formats.joining import with_last_obs

_TRUE, _FALSE = frozenset({"1", "true", "yes", "1.0"}), frozenset({"", "0", "false", "no", "0.0"})
_ENDS = ("terminated", "truncated", "cut")
_ONE = "the name of a column"
Names = str | Sequence[str]
_Line = tuple[int, Mapping[str, str]]
"""The number of a line, and its values."""


class CsvReader(FormatReader):
    """Reads logs in CSV, with a header line.

    The rows of an episode are adjacent; within an episode, the rows of its agents may be mixed. A row without an action
    ends its episode and holds its last observation. Without such a row, and without a termination, the last step is
    left out, because the observation after it is unknown. Rows after a skipped line count as the rest of an episode,
    because that line may have begun the episode.

    Args:
        paths: the files.
        obs: the column or columns of the observation.
        actions: the column or columns of the action.
        rewards: the column of the reward of the action.
        episode: the column whose change begins another episode; None: each file is one episode.
        terminated, truncated: columns with 1 or true in the last row of an episode that ended in that way. If
            both are None, `ends` is used.
        action_logp: the column of the log-probability of the action.
        agent: the column of the agent's id.
        ends: how all episodes end: "terminated", "truncated" (the default) or "cut".
        delimiter: separator of columns.
        settings: as for `FormatReader`. Without an action space, actions are integers if `actions` is one name, not a
            list, and its column has only integers.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        obs: Names,
        actions: Names,
        rewards: str,
        episode: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
        action_logp: str | None = None,
        agent: str | None = None,
        ends: str | None = None,
        delimiter: str = ",",
        **settings: Any,
    ) -> None:
        super().__init__(paths, **settings)
        if ends not in (None, *_ENDS):
            raise ConfigError.unknown("end of episodes", ends, _ENDS, "ends")
        if ends is not None and (terminated or truncated):
            got = f"{ends=}, {terminated=}, {truncated=}"
            why, expected = "columns of the file determine how episodes end", "either ends, or these columns"
            raise ConfigError.no_effect("ends", why, "setting 'ends'", got, expected)
        for name, value in (("obs", obs), ("actions", actions)):
            names = value if isinstance(value, list | tuple) else [value]
            fits = bool(names) and all(isinstance(part, str) for part in names)
            check_setting(name, value, fits, f"{_ONE}, or a list of such names")
        check_setting("rewards", rewards, isinstance(rewards, str), _ONE)
        further = {"episode": episode, "terminated": terminated, "truncated": truncated, "agent": agent}
        for name, value in {**further, "action_logp": action_logp}.items():
            check_setting(name, value, isinstance(value, str | None), _ONE)
        check_setting("delimiter", delimiter, isinstance(delimiter, str) and len(delimiter) == 1, "one character")
        self._ends, self._delimiter = ends or "truncated", delimiter
        self._obs, self._actions = ([one] if isinstance(one, str) else list(one) for one in (obs, actions))
        self._scalar_obs, self._scalar_action = isinstance(obs, str), isinstance(actions, str)
        self._rewards, self._episode, self._agent, self._logp = rewards, episode, agent, action_logp
        self._flags = {"terminated": terminated, "truncated": truncated}

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self.paths):
            rows: dict[str, list[_Line]] = {}
            known: set[str] = set()
            current, continues = "", False
            for line, row in self._rows(path):
                if isinstance(row, DatasetError):
                    self.skip(row)
                    yield from self._finished(rows, current, path, continues=continues, cut=True)
                    rows, continues = {}, True  # the skipped line may be the beginning of the next episode
                    continue
                episode = f"{number}:{row[self._episode]}" if self._episode else str(number)
                if episode != current:
                    yield from self._finished(rows, current, path, continues=continues)
                    rows, continues = {}, continues and not rows
                    if episode in known:
                        what, got = "The rows of an episode are not contiguous.", row[self._episode or ""]
                        raise DatasetError(what, f"{path}, line {line}", f"episode {got!r} again").fix(
                            "sort the rows by episode, and within it by time"
                        )
                    current = episode
                    known.add(episode)
                rows.setdefault(row[self._agent] if self._agent else DEFAULT_AGENT, []).append((line, row))
            yield from self._finished(rows, current, path, continues=continues)

    def _rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, str] | DatasetError]]:
        """The number of each line, with its values or its error."""
        wanted = [*self._obs, *self._actions, self._rewards, self._episode, self._agent, self._logp]
        names = [name for name in (*wanted, *self._flags.values()) if name is not None]
        try:
            with decoding("CSV in UTF-8", path), open(path, encoding="utf-8-sig", newline="") as file:
                table = csv.DictReader(lines_of(file, path), delimiter=self._delimiter)
                _check_header(list(table.fieldnames or ()), names, path)
                for row in table:
                    beyond: Any = row.pop(None, ())  # type: ignore[call-overload]  the values beyond the header
                    extra = [value for value in beyond if value.strip()]  # some programs end lines with a delimiter
                    number, complete = table.line_num, not extra and all(row[name] is not None for name in names)
                    yield number, row if complete else self._error_of(row, extra, f"{path}, line {number}")
        except DatasetError as error:
            yield 0, error

    def _error_of(self, row: Mapping[str, str | None], extra: list[str], where: str) -> DatasetError:
        what = "A line has more values than the header." if extra else "A line is truncated."
        given = self._delimiter.join(value for value in (*row.values(), *extra) if value is not None)
        return DatasetError(what, where, given).expected(
            f"{len(row)} values, separated by {self._delimiter!r}",
            "correct the line (decimal comma, newline), or skip broken lines with max_broken",
        )

    def _finished(
        self, rows: Mapping[str, list[_Line]], episode: str, path: Path, *, continues: bool, cut: bool = False
    ) -> Iterator[RecordedTrajectory]:
        """The trajectories of an episode's rows; `continues`: a line before them was skipped; `cut`: the line after."""
        for agent, lines in rows.items():
            try:
                made = self._trajectory(lines, path, (episode, agent, DEFAULT_POLICY), continues=continues, cut=cut)
            except DatasetError as error:
                self.skip(error)
                continue
            if made is not None:
                yield made
            elif self._acts(lines[0]):  # otherwise the line has only an observation
                self.left_out += 1

    def _acts(self, line: _Line) -> bool:
        return any(line[1][name].strip() for name in self._actions)

    def _trajectory(
        self, lines: list[_Line], path: Path, ids: Ids, *, continues: bool, cut: bool
    ) -> RecordedTrajectory | None:
        where = f"{path}, line {lines[0][0]}"
        has_last = not self._acts(lines[-1])
        steps = lines[:-1] if has_last else lines
        if not steps:
            return None
        if has_last and lines[-1][1][self._rewards].strip():
            (reward,) = self._numbers(lines[-1:], [self._rewards], path, scalar=True)
            if not (reward == 0 or np.isnan(reward)):
                what = "The row after the last action has a reward, which belongs to no step."
                raise DatasetError(
                    what, f"{path}, line {lines[-1][0]}, column {self._rewards!r}", float(reward)
                ).expected(
                    "the reward of an action in its own row, and nothing or 0 in a row without an action",
                    "if the file has each reward in the row of the next observation, move the column up by one row",
                )
        observation_space, action_space = self.spaces_of(DEFAULT_POLICY, where)
        obs = self._numbers(lines, self._obs, path, scalar=self._scalar_obs, whole=observation_space is not None)
        whole = action_space is not None or self._scalar_action
        actions = self._numbers(steps, self._actions, path, scalar=self._scalar_action, whole=whole)
        if action_space is None and self._scalar_action and _are_integers(actions):
            actions = actions.astype(np.int64)
        observed = columns_of(observation_space, obs, "obs", where)
        columns: dict[str, Any] = {
            SampleBatch.OBS: trees.index(observed, slice(len(steps))),
            SampleBatch.ACTIONS: columns_of(action_space, actions, "actions", where),
            SampleBatch.REWARDS: self._numbers(steps, [self._rewards], path, scalar=True),
            SampleBatch.T: np.arange(len(steps)),
        }
        if self._logp is not None:
            columns[SampleBatch.ACTION_LOGP] = self._numbers(steps, [self._logp], path, scalar=True).astype(np.float32)
        ends = self._ended(lines, path, has_last=has_last, cut=cut)
        last = trees.index(observed, len(steps)) if has_last else None
        return with_last_obs(columns, last, ends, ids, where, continues=continues)

    def _ended(self, lines: list[_Line], path: Path, *, has_last: bool, cut: bool) -> tuple[bool, bool]:
        """Whether an episode terminated, and whether it was truncated; `cut`: the next line is broken."""
        if not any(self._flags.values()):
            ends = "cut" if cut and not has_last else self._ends
            return ends == "terminated", ends == "truncated"
        found = []
        for name in self._flags.values():
            flags = [] if name is None else [_flag(row[name], f"{path}, line {line}", name) for line, row in lines]
            ending = len(lines) - 1 - has_last  # the flag may also be in the line with the last observation
            if any(flags[:ending]):
                where = f"{path}, line {lines[flags.index(True) + 1][0]}"
                raise DatasetError("A step follows the end of its episode.", where, f"true in {name!r} before").fix(
                    "set episode to the column that differs between episodes"
                )
            found.append(any(flags[ending:]))
        return found[0], found[1] and not found[0]

    def _numbers(
        self, lines: list[_Line], names: Sequence[str], path: Path, *, scalar: bool, whole: bool = False
    ) -> np.ndarray:
        """The numbers in some columns. `whole`: as integers if all are integers (floats round integers above 2**53)."""
        values: list[float] = []
        for line, row in lines:
            for name in names:
                try:
                    values.append(_integer_or_float(row[name]) if whole else float(row[name]))
                except ValueError as error:
                    where = f"{path}, line {line}, column {name!r}"
                    raise DatasetError.is_not("A value", "a number", where, row[name]).fix(
                        "correct or remove the line, or skip broken episodes with max_broken"
                    ) from error
        array = np.array(values)
        if array.dtype.kind == "O":  # integers beyond 64 bits
            array = array.astype(np.float64)
        return array if scalar else array.reshape(len(lines), len(names))


def _integer_or_float(text: str) -> float:
    try:
        number = int(text)
        float(number)  # OverflowError beyond all floats: infinity, as for 1e999
        return number
    except (ValueError, OverflowError):
        return float(text)


def _check_header(header: list[str], names: list[str], path: Path) -> None:
    """Raises DatasetError if a header lacks a name, or has it twice."""
    if missing := [name for name in names if name not in header]:
        raise DatasetError("The CSV file lacks a column.", path, ", ".join(header)).expected(
            ", ".join(missing), "name the file's columns in the settings, and their separator in the setting delimiter"
        )
    if twice := [name for name in names if header.count(name) > 1]:
        raise DatasetError("The CSV header has a name twice.", path, ", ".join(header)).expected(
            f"one column {twice[0]!r}", "rename one of them"
        )


def _are_integers(numbers: np.ndarray) -> bool:
    return numbers.dtype.kind == "f" and bool(((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**63)).all())


def _flag(text: str, where: str, name: str) -> bool:
    value = text.strip().casefold()
    if value not in _TRUE | _FALSE:
        expected = "1, true, 0, false, or nothing"
        raise DatasetError.is_not("A value", "a flag", f"{where}, column {name!r}", value).expected(expected)
    return value in _TRUE
