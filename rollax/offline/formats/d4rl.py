"""D4RL's HDF5 files: flat arrays of all steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core.numbers import is_whole
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import ConfigError, DatasetError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import (
    MAX_DECODED_GB,
    FormatReader,
    check_decoded,
    check_setting,
    checked_max_gb,
    decoding,
    one_per_step,
)
from rollax.offline.formats.joining import same_rows, with_last_obs

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_COLUMNS = {
    SampleBatch.OBS: "observations",
    SampleBatch.ACTIONS: "actions",
    SampleBatch.REWARDS: "rewards",
    SampleBatch.NEW_OBS: "next_observations",
}
_AT_ONCE = 4 << 20  # bytes of trajectories that are read together
_End = tuple[int, int, bool, bool]
"""First row, row after the last, terminated, truncated."""
_SMALL, _MOST_COMPRESSED = 64 << 20, 1100  # bytes; factor: gzip, which compresses most in HDF5, reaches at most 1032


class D4RLReader(FormatReader):
    """Reads `observations, actions, rewards, terminals`, and `timeouts` and `next_observations` if they exist.

    Without `timeouts`, an episode is truncated after `time_limit` steps, by default the time limit of `env`. If the
    setting `time_limit` is None, an episode is also cut where `next_observations` differs from the next row of
    `observations`.

    Without `next_observations`, the last step of an episode that does not terminate is left out, because the
    observation after it is unknown; its reward still counts in the return of a truncated episode. Memory holds a few
    MiB of trajectories at a time, or a single larger one.

    Args:
        paths: the files.
        time_limit: number of steps after which an episode is truncated, in files without `timeouts`.
        max_decoded_gb: maximum GiB of a decoded episode or array.
        settings: as for `FormatReader`.
    Raises:
        ConfigError: a `time_limit`, if all files have `timeouts`.
        DatasetError: while reading, a file with neither `timeouts` nor `next_observations`, if no time limit is known.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        time_limit: int | None = None,
        max_decoded_gb: float = MAX_DECODED_GB,
        **settings: Any,
    ) -> None:
        super().__init__(paths, **settings)
        self._max_decoded_gb = checked_max_gb(max_decoded_gb)
        fits = time_limit is None or (is_whole(time_limit) and time_limit >= 1)
        check_setting("time_limit", time_limit, fits, "an integer of at least 1")
        self._time_limit, self._env_limit = time_limit, _limit_of(self.header.get("env"))
        if time_limit is not None and self.paths and all(map(_has_timeouts, self.paths)):
            why = "the files have timeouts of their own"
            raise ConfigError.no_effect("time_limit", why, "setting 'time_limit'", time_limit)

    def __len__(self) -> int:
        return sum(map(self._steps, self.paths))

    def _steps(self, path: Path) -> int:
        """The number of steps that are read from a file; 0 for a damaged file that may be skipped."""
        try:
            with opened(path) as file:
                ends, complete = self._ends(file, path), _COLUMNS[SampleBatch.NEW_OBS] in file
        except DatasetError:
            if self._max_broken:
                return 0
            raise
        return sum(end - start - (not complete and not terminated) for start, end, terminated, _ in ends)

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self.paths):
            try:
                yield from self._trajectories(number, path)
            except DatasetError as error:
                self.skip(error)

    def _trajectories(self, number: int, path: Path) -> Iterator[RecordedTrajectory]:
        self.spaces_of(DEFAULT_POLICY, str(path))
        with opened(path) as file:
            for start, terminated, truncated, columns in self._rows(file, self._ends(file, path), path):
                last, ids = columns.pop(SampleBatch.NEW_OBS, None), (f"{number}:{start}", DEFAULT_AGENT, DEFAULT_POLICY)
                found = with_last_obs(columns, last, (terminated, truncated), ids, f"{path}, row {start}")
                if found is None:
                    self.left_out += 1
                else:
                    yield found

    def _rows(self, file: Any, ends: list[_End], path: Path) -> Iterator[tuple[int, bool, bool, dict[str, Any]]]:
        """First row, flags and columns of each trajectory, with the observation after it if the file has it."""
        arrays = {ours: file[theirs] for ours, theirs in _COLUMNS.items() if theirs in file}
        per_row = sum(array.nbytes / max(len(array), 1) for array in arrays.values())
        for group in _grouped(ends, _rows_at_once(per_row)):
            first, last = group[0][0], group[-1][1]
            where = f"{path}, rows {first} to {last - 1}"
            if len(group) == 1:
                check_decoded((last - first) * per_row, self._max_decoded_gb, f"{path}, row {first}")
            with decoding("an HDF5 file", where):
                read = {name: array[first:last] for name, array in arrays.items()}  # one call for many short episodes
            read[SampleBatch.REWARDS] = one_per_step(read[SampleBatch.REWARDS], "rewards", where)
            for start, end, terminated, truncated in group:
                columns = {name: values[start - first : end - first] for name, values in read.items()}
                columns[SampleBatch.T] = np.arange(end - start)
                if SampleBatch.NEW_OBS in columns:
                    columns[SampleBatch.NEW_OBS] = columns[SampleBatch.NEW_OBS][-1]
                yield start, terminated, truncated, columns

    def _ends(self, file: Any, path: Path) -> list[_End]:
        if missing := [name for name in _REQUIRED if name not in file]:
            raise DatasetError("The HDF5 file lacks arrays of D4RL.", path, sorted(file)).expected(
                f"{', '.join(_REQUIRED)}: missing {', '.join(missing)}"
            )
        names = [name for name in (*_REQUIRED, "timeouts", "next_observations") if name in file]
        lengths = {name: next(iter(getattr(file[name], "shape", ())), None) for name in names}
        if None in lengths.values() or len(set(lengths.values())) > 1:
            expected = "a row for each step, so arrays of equal lengths"
            raise DatasetError("The arrays have different lengths.", path, lengths, expected=expected)
        for name in names:
            if (kind := file[name].dtype).kind not in "biuf":  # texts may share bytes, so small files could fill memory
                raise DatasetError("An array contains no numbers.", f"{path}, {name}", kind, expected="numbers")
        terminals = self._flags(file, "terminals", path)
        if not len(terminals):
            return []
        timeouts = gaps = np.zeros_like(terminals)
        limit = self._env_limit if self._time_limit is None else self._time_limit
        if "timeouts" in file:
            timeouts = self._flags(file, "timeouts", path)
        else:
            if self._time_limit is None and "next_observations" in file:
                gaps = _gaps(file, path)
            elif limit is None:
                raise _unknown_ends(path, self.header.get("env"))
            if limit is not None:
                timeouts = _timeouts(terminals, gaps, limit)
        over = np.flatnonzero(terminals | timeouts | gaps)
        if not len(over) or over[-1] != len(terminals) - 1:
            over = np.append(over, len(terminals) - 1)
        starts = np.append(0, over[:-1] + 1)
        flags = [(bool(terminals[end]), bool(timeouts[end]) and not terminals[end]) for end in over]
        return [(int(s), int(e) + 1, *f) for s, e, f in zip(starts, over, flags, strict=True)]

    def _flags(self, file: Any, name: str, path: Path) -> np.ndarray:
        check_decoded(file[name].nbytes, self._max_decoded_gb, f"{path}, {name}")
        with decoding("an HDF5 file", f"{path}, {name}"):
            return one_per_step(file[name][:], name, str(path), bool)


def _rows_at_once(row_bytes: float) -> int:
    return max(int(_AT_ONCE / max(row_bytes, 1)), 1)


def _grouped(ends: list[_End], rows: int) -> Iterator[list[_End]]:
    """Groups of adjacent trajectories with at most `rows` rows together, or a single larger one."""
    group: list[_End] = []
    for end in ends:
        if group and end[1] - group[0][0] > rows:
            yield group
            group = []
        group.append(end)
    if group:
        yield group


def _timeouts(terminals: np.ndarray, gaps: np.ndarray, limit: int) -> np.ndarray:
    """[N] bool: the steps that reach the limit, counted from the last termination, gap or timeout."""
    timeouts, begun = np.zeros_like(terminals), 0
    for row, (terminal, gap) in enumerate(zip(terminals.tolist(), gaps.tolist(), strict=True)):
        timeouts[row] = timed_out = not terminal and row + 1 - begun == limit
        if terminal or gap or timed_out:
            begun = row + 1
    return timeouts


def _gaps(file: Any, path: Path) -> np.ndarray:
    """[N] bool: the steps whose next observation differs from the observation of the next row."""
    obs, following = file["observations"], file["next_observations"]
    if obs.shape != following.shape:
        subject, where = "The next observations have", f"{path}, next_observations"
        raise DatasetError.wrong_shape(subject, where, following.shape, obs.shape)
    gaps, at_once = np.zeros(len(obs), bool), _rows_at_once(obs.nbytes / max(len(obs), 1))
    for start in range(0, len(obs) - 1, at_once):
        stop = min(start + at_once, len(obs) - 1)
        with decoding("an HDF5 file", f"{path}, rows {start} to {stop}"):
            gaps[start:stop] = ~same_rows(following[start:stop].astype(obs.dtype), obs[start + 1 : stop + 1])
    return gaps


def _limit_of(env: Any) -> int | None:
    """The maximum number of steps of a registered environment; None: unknown."""
    if not isinstance(env, str):
        return None
    try:
        return gymnasium.spec(env.rpartition(":")[2]).max_episode_steps  # the id of "module:id"
    except gymnasium.error.Error:
        return None


def _unknown_ends(path: Path, env: str | None) -> DatasetError:
    no_env = "and no env" if env is None else f"and no time limit of {env} in Gymnasium"
    what = "The ends of truncated episodes are unknown: steps would go on in the next episode."
    return DatasetError(what, path, f"neither timeouts nor next_observations, {no_env}").expected(
        "the time limit of the episodes",
        "pass the setting time_limit, the number of steps of a truncated episode (if every episode terminates: a "
        "number above the longest), or env, an id whose limit is used",
    )


def _has_timeouts(path: Path) -> bool:
    """Whether a file has timeouts; False for a damaged file, which raises when it is read."""
    try:
        with opened(path) as file:
            return "timeouts" in file
    except DatasetError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open HDF5 file; every error in the block becomes a DatasetError, because h5py raises many types of errors.

    Files with links, with data in other files, or with objects are refused.
    """
    with decoding("an HDF5 file", path), h5py.File(path, "r") as file:
        _refuse(file, path, set())
        yield file


def _refuse(group: Any, path: Path, seen: set[Any]) -> None:
    if group in seen:  # reading it would take for ever
        what = "A group of the HDF5 file contains itself, or is in several groups."
        raise DatasetError(what, f"{path}, {group.name}", fix="copy the data into a file with one name for each group")
    seen.add(group)
    for name in group:
        link = group.get(name, getlink=True)
        where = f"{path}, {group.name.rstrip('/')}/{name}"
        if not isinstance(link, h5py.HardLink):
            what = "The HDF5 file contains a link, which may lead to another file."
            raise DatasetError(what, where, type(link).__name__, fix="copy the data into the file")
        found = group[name]
        if isinstance(found, h5py.Group):
            _refuse(found, path, seen)
        elif isinstance(found, h5py.Dataset):
            _refuse_array(found, where)


def _refuse_array(array: Any, where: str) -> None:
    if array.external or array.is_virtual:
        raise DatasetError("The HDF5 file stores data in other files.", where, fix="copy the data into the file")
    kind, is_text = array.dtype.kind, h5py.check_string_dtype(array.dtype) is not None
    parts = h5py.check_vlen_dtype(array.dtype)  # of rows of variable length, such as bytes of images
    if kind not in "biufS" and not is_text and (parts is None or parts.kind not in "biuf"):
        raise DatasetError("An array contains objects.", where, array.dtype, fix="convert it to numbers")
    # Reading an array that is mostly not in the file would fill the memory.
    stored = array.id.get_storage_size()
    if array.nbytes > max(_SMALL, _MOST_COMPRESSED * stored):
        got, fix = (
            f"{array.nbytes} bytes, of which {stored} are stored",
            "write the array again, with all of its values",
        )
        raise DatasetError("An array is much larger than the file.", where, got, fix=fix)
