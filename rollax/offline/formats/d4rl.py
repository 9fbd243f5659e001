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
from rollax.errors import ConfigError, DatasetError, RollaxError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import (
    ANOTHER_FILE,
    FormatReader,
    check_max_decoded_gb,
    one_per_step,
)
from rollax.offline.formats.joining import same_rows, with_last_obs
from rollax.offline.limits import MAX_DECODED_GB, check_decoded

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
_SMALL, _MOST_COMPRESSED = 64 << 20, 1100  # gzip, the best compression in HDF5, has a factor of at most 1032


class D4RLReader(FormatReader):
    """Reads `observations, actions, rewards, terminals`, and `timeouts` and `next_observations` if they exist.

    Without `timeouts`, an episode is truncated after `time_limit` steps, by default the time limit of `env`. An episode
    is then also cut where `next_observations` differs from the next row of `observations`.

    Without `next_observations`, the last step before a timeout is left out, because the observation after it is
    unknown; its reward still counts in the return. At a time, a few MiB of trajectories are in memory, or a single
    larger one.

    Args:
        paths: the files.
        time_limit: number of steps after which an episode is truncated, in files without `timeouts`.
        max_decoded_gb: maximum GiB of a decoded episode or array.
        settings: as for `FormatReader`.
    Raises:
        DatasetError: while reading, files whose truncated episodes are not known from any of these.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        time_limit: int | None = None,
        max_decoded_gb: float = MAX_DECODED_GB,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        check_max_decoded_gb(max_decoded_gb)
        self._max_decoded_gb = max_decoded_gb
        if time_limit is not None and not (is_whole(time_limit) and time_limit >= 1):
            raise ConfigError("The time limit is not a number of steps.", "time_limit", repr(time_limit)).expected(
                "an integer of at least 1"
            )
        self._paths, self._time_limit = list(paths), time_limit
        self._env_limit = _limit_of(self.header.get("env"))
        if time_limit is not None and self._paths and all(map(_has_timeouts, self._paths)):
            raise ConfigError.no_effect(
                "time_limit", "the files have timeouts of their own", "setting 'time_limit'", time_limit
            )

    def __len__(self) -> int:
        return sum(map(self._steps, self._paths))

    def _steps(self, path: Path) -> int:
        """The number of steps of a file without those left out; 0 for a damaged file that may be skipped."""
        try:
            with opened(path) as file:
                ends = self._ends(file, path)
                complete = _COLUMNS[SampleBatch.NEW_OBS] in file
        except DatasetError:
            if self._max_broken:
                return 0
            raise
        return sum(end - start - (not complete and not terminated) for start, end, terminated, _ in ends)

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self._paths):
            try:
                yield from self._trajectories(number, path)
            except DatasetError as error:
                self.skip(error)

    def _trajectories(self, number: int, path: Path) -> Iterator[RecordedTrajectory]:
        self.spaces_of(DEFAULT_POLICY, str(path))
        with opened(path) as file:
            ends = self._ends(file, path)
            for start, terminated, truncated, columns in self._rows(file, ends, path):
                last, ids = columns.pop(SampleBatch.NEW_OBS, None), (f"{number}:{start}", DEFAULT_AGENT, DEFAULT_POLICY)
                found = with_last_obs(columns, last, (terminated, truncated), ids, f"{path}, row {start}")
                if found is not None:
                    yield found

    def _rows(self, file: Any, ends: list[_End], path: Path) -> Iterator[tuple[int, bool, bool, dict[str, Any]]]:
        """First row, flags and columns of each trajectory, with the observation after it if the file has it."""
        arrays = {ours: file[theirs] for ours, theirs in _COLUMNS.items() if theirs in file}
        per_row = sum(array.nbytes / max(len(array), 1) for array in arrays.values())
        for group in _grouped(ends, max(int(_AT_ONCE / max(per_row, 1)), 1)):
            first, last = group[0][0], group[-1][1]
            where = f"{path}, rows {first} to {last - 1}"
            if len(group) == 1:
                check_decoded((last - first) * per_row, self._max_decoded_gb, f"{path}, row {first}")
            try:
                read = {name: array[first:last] for name, array in arrays.items()}  # one call for many short ones
            except OSError as error:
                raise _damaged(where, error) from error
            read[SampleBatch.REWARDS] = one_per_step(read[SampleBatch.REWARDS], "rewards", where)
            for start, end, terminated, truncated in group:
                rows = slice(start - first, end - first)
                columns = {name: values[rows] for name, values in read.items()}
                columns[SampleBatch.T] = np.arange(end - start)
                if SampleBatch.NEW_OBS in columns:
                    columns[SampleBatch.NEW_OBS] = columns[SampleBatch.NEW_OBS][-1]
                yield start, terminated, truncated, columns

    def _ends(self, file: Any, path: Path) -> list[_End]:
        missing = [name for name in _REQUIRED if name not in file]
        if missing:
            raise DatasetError("The HDF5 file lacks arrays of D4RL.", path, sorted(file)).expected(
                f"{', '.join(_REQUIRED)}: missing {', '.join(missing)}"
            )
        names = [name for name in (*_REQUIRED, "timeouts", "next_observations") if name in file]
        shapes: dict[str, tuple[int, ...]] = {name: getattr(file[name], "shape", ()) for name in names}
        if () in shapes.values():
            got = f"the shapes {shapes}"
            raise DatasetError("The arrays have no steps.", where=path, got=got, expected="a row for each step")
        lengths = {name: shape[0] for name, shape in shapes.items()}
        if len(set(lengths.values())) > 1:
            raise DatasetError("The arrays have different lengths.", where=path, got=lengths, expected="equal lengths")
        terminals = self._flags(file, "terminals", path)
        timeouts, gaps = np.zeros_like(terminals), np.zeros_like(terminals)
        if "timeouts" in file:
            timeouts = self._flags(file, "timeouts", path)
        elif self._time_limit is not None:
            timeouts = _timeouts(terminals, gaps, self._time_limit)
        else:
            if "next_observations" in file:
                gaps = _gaps(file, path)
            elif self._env_limit is None and len(terminals):
                raise _unknown_ends(path, self.header.get("env"))
            if self._env_limit is not None:
                timeouts = _timeouts(terminals, gaps, self._env_limit)
        if not len(terminals):
            return []
        over = np.flatnonzero(terminals | timeouts | gaps)
        if not len(over) or over[-1] != len(terminals) - 1:
            over = np.append(over, len(terminals) - 1)
        starts = np.append(0, over[:-1] + 1)
        flags = [(bool(terminals[end]), bool(timeouts[end]) and not terminals[end]) for end in over]
        return [(int(s), int(e) + 1, *f) for s, e, f in zip(starts, over, flags, strict=True)]

    def _flags(self, file: Any, name: str, path: Path) -> np.ndarray:
        check_decoded(file[name].nbytes, self._max_decoded_gb, f"{path}, {name}")
        try:
            return one_per_step(file[name][:], name, str(path), bool)
        except OSError as error:
            raise _damaged(f"{path}, {name}", error) from error


def _grouped(ends: list[_End], rows: int) -> Iterator[list[_End]]:
    """Groups of adjacent trajectories with at most `most` rows together, or a single larger one."""
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
        raise DatasetError(
            "The next observations have another shape.", f"{path}, next_observations", following.shape
        ).expected(obs.shape)
    gaps, at_once = np.zeros(len(obs), bool), max(int(_AT_ONCE / max(obs.nbytes / max(len(obs), 1), 1)), 1)
    for start in range(0, len(obs) - 1, at_once):
        stop = min(start + at_once, len(obs) - 1)
        try:
            gaps[start:stop] = ~same_rows(following[start:stop].astype(obs.dtype), obs[start + 1 : stop + 1])
        except OSError as error:
            raise _damaged(f"{path}, rows {start} to {stop}", error) from error
    return gaps


def _limit_of(env: Any) -> int | None:
    """The maximum number of steps of a registered environment; None: unknown."""
    if not isinstance(env, str):
        return None
    try:
        return gymnasium.spec(env.rpartition(":")[2]).max_episode_steps  # without a module, "module:id"
    except gymnasium.error.Error:
        return None


def _unknown_ends(path: Path, env: str | None) -> DatasetError:
    return DatasetError(
        "The ends of truncated episodes are unknown: steps would go on in the next episode.",
        path,
        "neither timeouts nor next_observations, "
        + ("and no env" if env is None else f"and no time limit of {env} in Gymnasium"),
    ).expected(
        "the time limit of the episodes",
        "pass the setting time_limit, the number of steps of a truncated episode (if every episode terminates: a "
        "number above the longest), or env, an id whose limit is used",
    )


def _has_timeouts(path: Path) -> bool:
    """Whether a file has timeouts; False for a damaged one, which is refused when it is read."""
    try:
        with opened(path) as file:
            return "timeouts" in file
    except DatasetError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """An open HDF5 file; every error in the block becomes a DatasetError.

    It refuses files with links to other files or with objects. For a damaged file, h5py raises errors of many types,
    some of them only when an array is read.
    """
    try:
        with h5py.File(path, "r") as file:
            _refuse(file, path, set())
            yield file
    except RollaxError:
        raise
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(where: Any, error: Exception) -> DatasetError:
    return DatasetError.damaged(where, f"{type(error).__name__}: {error}", "an HDF5 file").fix(ANOTHER_FILE)


def _refuse(group: Any, path: Path, seen: set[Any]) -> None:
    if group in seen:  # reading it would take for ever
        raise DatasetError(
            "A group of the HDF5 file contains itself, or is in several groups.", f"{path}, {group.name}"
        ).expected("a tree of groups", "copy the data into a file with one name for each group")
    seen.add(group)
    for name in group:
        link = group.get(name, getlink=True)
        where = f"{path}, {group.name.rstrip('/')}/{name}"
        if not isinstance(link, h5py.HardLink):
            raise DatasetError(
                "The HDF5 file contains a link, which may lead to another file.", where, type(link).__name__
            ).expected("data in the file itself", "copy the data into the file")
        found = group[name]
        if isinstance(found, h5py.Group):
            _refuse(found, path, seen)
        elif isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
            raise DatasetError(
                "The HDF5 file stores data in other files.", where=where, expected="data in the file itself"
            )
        elif isinstance(found, h5py.Dataset) and found.dtype.kind not in "biuf":
            string = h5py.check_string_dtype(found.dtype)
            bytes_of_image = h5py.check_vlen_dtype(found.dtype) is not None
            if string is None and not bytes_of_image and found.dtype.kind != "S":
                raise DatasetError("An array contains objects.", where, found.dtype).expected(
                    "numbers", "convert it to numbers"
                )
        if isinstance(found, h5py.Dataset):
            _refuse_declared(found, where)


def _refuse_declared(found: Any, where: str) -> None:
    """Refuses an array whose data is mostly not in the file, because reading it would fill the memory."""
    stored = found.id.get_storage_size()
    if found.nbytes > max(_SMALL, _MOST_COMPRESSED * stored):
        raise DatasetError(
            "An array is much larger than the file.", where, f"{found.nbytes} bytes, of which {stored} are stored"
        ).expected("data in the file itself", "write the array again, with all of its values")
