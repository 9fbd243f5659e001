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
from rollax.offline.formats.common import FormatReader, Ids, check_setting, columns_of
from rollax.offline.formats.joining import with_last_obs
from rollax.offline.limits import lines_of

_TRUE, _FALSE = frozenset({"1", "true", "yes", "1.0"}), frozenset({"", "0", "false", "no", "0.0"})
Names = str | Sequence[str]


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
        terminated, truncated: columns with 1 or true in the last row of an episode that ended in that way. Without
            both, `ends` is used.
        action_logp: the column of the log-probability of the action.
        agent: the column of the agent's id.
        ends: the end of all episodes: "terminated", "truncated" (the default) or "cut".
        delimiter: separator of columns.
        settings: as for `FormatReader`. Without spaces, a single action column of integers is an integer action.
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
        super().__init__(**settings)
        if ends not in (None, "terminated", "truncated", "cut"):
            raise ConfigError.unknown("end of episodes", ends, ("terminated", "truncated", "cut"), "ends")
        if ends is not None and (terminated or truncated):
            raise ConfigError(
                "ends has no effect: columns of the file determine how episodes end.",
                "setting 'ends'",
                f"{ends=}, {terminated=}, {truncated=}",
            ).expected(
                "either ends, or the columns terminated and truncated",
                "leave ends out, or the settings terminated and truncated",
            )
        one, several = "the name of a column", "the name of a column, or a list of such names"
        for name, value in (("obs", obs), ("actions", actions)):
            names = value if isinstance(value, list | tuple) else [value]
            check_setting(name, value, bool(names) and all(isinstance(part, str) for part in names), several)
        check_setting("rewards", rewards, isinstance(rewards, str), one)
        further = {"episode": episode, "terminated": terminated, "truncated": truncated, "agent": agent}
        for name, value in {**further, "action_logp": action_logp}.items():
            check_setting(name, value, value is None or isinstance(value, str), one)
        check_setting("delimiter", delimiter, isinstance(delimiter, str) and len(delimiter) == 1, "one character")
        self._paths, self._ends, self._delimiter = list(paths), ends or "truncated", delimiter
        self._obs, self._actions, self._rewards = _listed(obs), _listed(actions), rewards
        self._scalar_obs, self._scalar_action = isinstance(obs, str), isinstance(actions, str)
        self._episode, self._agent, self._logp = episode, agent, action_logp
        self._flags = {"terminated": terminated, "truncated": truncated}

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self._paths):
            rows: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
            known: set[str] = set()
            current: str | None = None
            continues = after_skipped = False
            for line, row in self._rows(path):
                if row is None:
                    yield from self._finished(rows, current, path, continues=continues, cut=True)
                    rows, continues, after_skipped = {}, True, True
                    continue
                episode = f"{number}:{row[self._episode]}" if self._episode else str(number)
                if episode != current:
                    yield from self._finished(rows, current, path, continues=continues)
                    rows, current, continues = {}, episode, after_skipped
                    if episode in known:
                        raise DatasetError(
                            "The rows of an episode are not contiguous.",
                            f"{path}, line {line}",
                            f"episode {row[self._episode or '']!r} again",
                        ).expected(
                            "all rows of an episode before those of the next",
                            "sort the rows by episode, and within it by time",
                        )
                    known.add(episode)
                after_skipped = False
                rows.setdefault(row[self._agent] if self._agent else DEFAULT_AGENT, []).append((line, row))
            yield from self._finished(rows, current, path, continues=continues)

    def _rows(self, path: Path) -> Iterator[tuple[int, Mapping[str, str] | None]]:
        """The number and values of each line; None for a skipped line."""
        wanted = [*self._obs, *self._actions, self._rewards, self._episode, self._agent, self._logp]
        names = [name for name in (*wanted, *self._flags.values()) if name is not None]
        try:
            with open(path, encoding="utf-8-sig", newline="") as file:
                table = csv.DictReader(lines_of(file, path), delimiter=self._delimiter)
                if (error := _header_error(list(table.fieldnames or ()), names, path)) is not None:
                    self.skip(error)
                    return
                for row in table:
                    beyond: Any = row.pop(None, ())  # type: ignore[call-overload]  the values beyond the header
                    extra = [value for value in beyond if value.strip()]  # some programs end lines with a delimiter
                    if extra or any(row[name] is None for name in names):
                        self.skip(_line_error(row, extra, self._delimiter, f"{path}, line {table.line_num}"))
                        yield table.line_num, None
                    else:
                        yield table.line_num, row
        except DatasetError as error:
            self.skip(error)
            yield 0, None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            fix = "write the file again in UTF-8, or skip some with max_broken"
            self.skip(
                DatasetError("The file cannot be read.", where=path, got=str(error), expected="CSV in UTF-8", fix=fix)
            )
            yield 0, None

    def _finished(
        self,
        rows: Mapping[str, list[tuple[int, Mapping[str, str]]]],
        episode: str | None,
        path: Path,
        *,
        continues: bool,
        cut: bool = False,
    ) -> Iterator[RecordedTrajectory]:
        """The trajectories of an episode's rows; `continues`, `cut`: a line before or after them was skipped."""
        for agent, lines in rows.items():
            ids = str(episode), agent, DEFAULT_POLICY
            try:
                made = self._trajectory(lines, path, ids, continues=continues, cut=cut)
            except DatasetError as error:
                self.skip(error)
                continue
            if made is not None:
                yield made
            elif any(lines[0][1][name].strip() for name in self._actions):  # otherwise it has only an observation
                self.left_out += 1

    def _trajectory(
        self, lines: list[tuple[int, Mapping[str, str]]], path: Path, ids: Ids, *, continues: bool, cut: bool
    ) -> RecordedTrajectory | None:
        where = f"{path}, line {lines[0][0]}"
        has_last = all(not lines[-1][1][name].strip() for name in self._actions)
        steps = lines[:-1] if has_last else lines
        if not steps:
            return None
        if has_last and self._has_reward(lines[-1], path):
            raise DatasetError(
                "The row after the last action has a reward, which belongs to no step.",
                f"{path}, line {lines[-1][0]}, column {self._rewards!r}",
                lines[-1][1][self._rewards],
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

    def _ended(
        self, lines: list[tuple[int, Mapping[str, str]]], path: Path, *, has_last: bool, cut: bool
    ) -> tuple[bool, bool]:
        """Whether an episode terminated, and whether it was truncated; `cut`: the next line is broken."""
        if not any(self._flags.values()):
            ends = "cut" if cut and not has_last else self._ends
            return ends == "terminated", ends == "truncated"
        found = []
        for name in self._flags.values():
            flags = [] if name is None else [_flag(row[name], f"{path}, line {line}", name) for line, row in lines]
            ending = len(lines) - 1 - has_last  # the flag may also be in the line with the last observation
            if any(flags[:ending]):
                raise DatasetError(
                    "A step follows the end of its episode.",
                    f"{path}, line {lines[flags.index(True) + 1][0]}",
                    f"true in {name!r} before",
                ).expected(
                    "a flag in the last line of an episode only",
                    "set episode to the column that differs between episodes",
                )
            found.append(any(flags[ending:]))
        return found[0], found[1] and not found[0]

    def _has_reward(self, line: tuple[int, Mapping[str, str]], path: Path) -> bool:
        """Whether a row has a reward other than 0."""
        if not line[1][self._rewards].strip():
            return False
        (reward,) = self._numbers([line], [self._rewards], path, scalar=True)
        return not (reward == 0 or np.isnan(reward))

    def _numbers(
        self,
        lines: list[tuple[int, Mapping[str, str]]],
        names: Sequence[str],
        path: Path,
        *,
        scalar: bool,
        whole: bool = False,
    ) -> np.ndarray:
        """The numbers in some columns; `whole`: as integers if all are, as floats round those above 2**53."""
        values: list[float] = []
        for line, row in lines:
            for name in names:
                try:
                    values.append(_integer_or_float(row[name]) if whole else float(row[name]))
                except ValueError as error:
                    raise DatasetError.is_not(
                        "A value", "a number", f"{path}, line {line}, column {name!r}", row[name]
                    ).fix("correct or remove the line, or skip broken episodes with max_broken") from error
        array = np.array(values)
        if array.dtype.kind == "O":  # integers beyond 64 bits
            array = array.astype(np.float64)
        return array if scalar else array.reshape(len(lines), len(names))


def _integer_or_float(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _header_error(header: list[str], names: list[str], path: Path) -> DatasetError | None:
    """The error of a header that lacks a name, or has it twice."""
    if missing := [name for name in names if name not in header]:
        return DatasetError("The CSV file lacks a column.", path, ", ".join(header)).expected(
            ", ".join(missing), "name the file's columns in the settings, and their separator in the setting delimiter"
        )
    if twice := [name for name in names if header.count(name) > 1]:
        return DatasetError("The CSV header has a name twice.", path, ", ".join(header)).expected(
            f"one column {twice[0]!r}", "rename one of them"
        )
    return None


def _line_error(row: Mapping[str, str | None], extra: list[str], delimiter: str, where: str) -> DatasetError:
    given = [value for value in (*row.values(), *extra) if value is not None]
    return DatasetError(
        "A line has more values than the header." if extra else "A line is truncated.", where, delimiter.join(given)
    ).expected(
        f"{len(row)} values, separated by {delimiter!r}",
        "correct the line (decimal comma, newline), or skip broken lines with max_broken",
    )


def _are_integers(numbers: np.ndarray) -> bool:
    return numbers.dtype.kind == "f" and bool(((numbers == np.rint(numbers)) & (np.abs(numbers) < 2.0**63)).all())


def _flag(text: str, where: str, name: str) -> bool:
    value = text.strip().casefold()
    if value not in _TRUE | _FALSE:
        raise DatasetError.is_not("A value", "a flag", f"{where}, column {name!r}", value).expected(
            "1, true, 0, false, or nothing", "correct the value"
        )
    return value in _TRUE


def _listed(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
