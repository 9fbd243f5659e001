"""Minari's data sets, in HDF5 and in Arrow: read with Minari's own storage classes, and written with them."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import minari
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

import rollax
from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core import trees
from rollax.core.spaces import path_text, walk
from rollax.core.storage import parsed_json
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import DatasetError
from rollax.offline.dataset import DatasetReader, RecordedTrajectory, common_header, env_actions
from rollax.offline.formats.common import (
    MAX_DECODED_GB,
    FormatReader,
    check_spaces_known,
    checked_max_gb,
    decoding,
    one_per_step,
    warn_of_logp,
)
from rollax.offline.formats.minari_limits import HDF5_FILE, check_described, check_episode, steps_by_metadata
from rollax.offline.new_file import new_folder

log = logging.getLogger("rollax.offline")

METADATA = "metadata.json"
_ROOM = 1 << 20  # bytes: rewards, flags and the structure of HDF5
_MAX_METADATA = 64 << 20  # bytes
_EPISODE = "T + 1 observations, T actions and rewards, of numbers"
_ONE_AGENT = "A Minari data set can have only one agent."
_SEVERAL = "convert to rollax's own format or to json_lines, which may have several agents"
_ARROW_ROWS = 32 * 1024
"""Maximum number of observations of an episode in Arrow. PyArrow divides longer episodes into record batches, in no
guaranteed order, and Minari reads only the first batch."""


def data_folder(path: Path) -> Path | None:
    """The folder with Minari's metadata: `path`, or `path / "data"`; None if neither has metadata."""
    for folder in (path, path / "data"):
        if (folder / METADATA).is_file():
            return folder
    return None


class MinariReader(FormatReader):
    """Reads the folders of Minari data sets.

    Images that Minari stored as JPEG differ from the environment's images.

    Args:
        paths: the folders, each with `data/metadata.json` or `metadata.json`.
        actions_of, max_broken: as for `FormatReader`; the spaces come from the data.
        max_decoded_gb: maximum GiB of a decoded episode.
    Raises:
        DatasetError: damaged metadata, or data sets with different spaces.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        actions_of: Literal["policy", "environment"] | None = None,
        max_broken: int = 0,
        max_decoded_gb: float = MAX_DECODED_GB,
    ) -> None:
        super().__init__(paths, actions_of=actions_of, max_broken=max_broken)
        self._max_decoded_gb = checked_max_gb(max_decoded_gb)
        self._sets = self._open_all(_opened)
        self.header = common_header([one.header for one in self._sets], self.actions_of)
        for path, storage, *_ in self._sets:
            for kind in ("observation_space", "action_space"):
                self._take_space(DEFAULT_POLICY, getattr(storage, kind), kind, path)

    def __len__(self) -> int:
        return sum(one.steps for one in self._sets)

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, (path, storage, episodes, *_) in enumerate(self._sets):
            for index in range(episodes):  # one by one: several Arrow episodes at once may be divided into batches
                where = f"{path}, episode {index}"
                try:
                    with decoding(_EPISODE, where):
                        check_episode(storage, index, self._max_decoded_gb, where)
                        trajectory = _trajectory(storage, index, f"{number}:{index}", where)
                except DatasetError as error:
                    self.skip(error)
                else:
                    yield trajectory


class _Set(NamedTuple):
    """A data set of Minari."""

    path: Path
    storage: Any
    episodes: int
    steps: int
    header: dict[str, Any]


def _opened(path: Path) -> _Set:
    folder = data_folder(path)
    if folder is None:
        raise DatasetError("This is not a Minari data set.", path).expected(
            f"a folder with data/{METADATA}",
            "pass the folder of one data set, such as .../D4RL/door/human-v2; for other data, set another `format`",
        )
    if (folder / HDF5_FILE).exists():
        from rollax.offline.formats.d4rl import opened

        with opened(folder / HDF5_FILE):
            pass
    where = f"{path}, {folder.name}/{METADATA}"
    with decoding("metadata as Minari writes it", where):
        if (size := (folder / METADATA).stat().st_size) > _MAX_METADATA:
            raise ValueError(f"{size} bytes, which are more than {_MAX_METADATA}")
        described = MinariStorage.read_raw_metadata(folder)
        if missing := {"observation_space", "action_space"} - described.keys():
            # Minari would make the environment of `env_spec`, whose entry point and arguments may run any command.
            what, got = "The Minari data set does not describe its spaces.", f"no {' and no '.join(sorted(missing))}"
            raise DatasetError(what, where, got).expected(
                "observation_space and action_space",
                "use a newer version of the data set, or convert it with Minari if you trust it",
            )
        for kind in ("observation_space", "action_space"):
            check_described(parsed_json(described[kind]))
        storage = MinariStorage.read(folder)
        metadata = storage.metadata
        spec = parsed_json(metadata["env_spec"]) if isinstance(metadata.get("env_spec"), str) else {}
        behaviour = {"algorithm": metadata["algorithm_name"]} if "algorithm_name" in metadata else {}
        header = {"env": spec.get("id"), "behaviour": behaviour, "dataset_id": metadata.get("dataset_id")}
        counts = {name: metadata[name] for name in ("total_episodes", "total_steps")}
        if not all(0 <= count < 2**63 for count in counts.values()):
            raise ValueError(str(counts))
        return _Set(path, storage, int(counts["total_episodes"]), int(counts["total_steps"]), header)


def _trajectory(storage: Any, index: int, episode: str, where: str) -> RecordedTrajectory:
    (data,) = storage.get_episodes([index])
    rewards = one_per_step(data["rewards"], "rewards", where)
    columns = {SampleBatch.REWARDS: rewards, SampleBatch.T: np.arange(len(rewards))}
    for ours, theirs, expected in (
        (SampleBatch.OBS, "observations", len(rewards) + 1),
        (SampleBatch.ACTIONS, "actions", len(rewards)),
    ):
        columns[ours] = trees.tree_map(_numbers, data[theirs])
        if any(len(leaf) != expected for leaf in trees.leaves(columns[ours])):
            raise ValueError(f"{trees.length(columns[ours])} {theirs} for {len(rewards)} rewards")
    ends = bool(data["terminations"][-1]), bool(data["truncations"][-1])
    steps = steps_by_metadata(storage, index)
    if steps is not None and len(rewards) != steps:
        what = "Minari reads another number of steps than the episode has."
        raise DatasetError(what, where, f"{len(rewards)} steps").expected(
            f"{steps} steps, by the metadata of the episode",
            f"an episode of {_ARROW_ROWS} steps or more cannot be read from Arrow: record or convert it again, in HDF5 "
            '(format="minari"); or skip broken episodes with max_broken',
        )
    return RecordedTrajectory(columns, *ends, episode, DEFAULT_AGENT, DEFAULT_POLICY, where)


def _numbers(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"values of type {array.dtype}")
    return array


def write_minari(
    reader: DatasetReader, path: Path, *, storage: Literal["hdf5", "arrow"] = "hdf5", dataset_id: str | None = None
) -> int:
    """Writes a data set of one agent in Minari's format, images without loss; returns the number of episodes.

    Infos are left out; a warning has the number of episodes with infos.

    Args:
        path: a new or empty folder; the data is written into its folder `data`.
        storage: HDF5 in one file, or Arrow with a folder for each episode; with Arrow, at most 32,767 steps each.
        dataset_id: the id of the data set; by default `NAME-v0`, from the name of the folder.
    Raises:
        DatasetError: the folder is not empty, or the data has several agents, unknown spaces, a key that Minari cannot
            store, only the policy's actions, or an episode that is too long for Arrow.
    """
    check_spaces_known(reader, path)
    if len(reader.observation_spaces) != 1:
        raise DatasetError(_ONE_AGENT, path, f"policies {sorted(reader.observation_spaces)}").fix(_SEVERAL)
    (policy_id, observation_space), *_ = reader.observation_spaces.items()
    for name, space in (("obs", observation_space), ("actions", reader.action_spaces[policy_id])):
        _check_keys(space, storage, f"{path}, column {name!r}")
    with new_folder(path) as temporary:
        (temporary / "data").mkdir()
        stored = MinariStorage.new(
            temporary / "data", observation_space, reader.action_spaces[policy_id], None, storage, jpeg_encoding=False
        )
        count, with_infos, with_logp, agents = 0, 0, 0, {}
        for trajectory in reader.trajectories():
            if agents.setdefault(trajectory.episode_id, trajectory.agent_id) != trajectory.agent_id:
                raise DatasetError(_ONE_AGENT, trajectory.where, trajectory.agent_id).fix(_SEVERAL)
            if storage == "arrow" and len(trajectory) + 1 > _ARROW_ROWS:
                what = "The episode is too long for Arrow: Minari would read only a part of it."
                raise DatasetError(what, trajectory.place, f"{len(trajectory)} steps").expected(
                    f"at most {_ARROW_ROWS - 1} steps", 'convert to HDF5, format="minari"'
                )
            if storage == "hdf5":
                _refuse_full_disk(temporary / "data" / HDF5_FILE, trajectory)
            stored.update_episodes([_buffer(trajectory, reader)])
            count += 1
            with_infos += SampleBatch.INFOS in trajectory.columns
            with_logp += SampleBatch.ACTION_LOGP in trajectory.columns
        name = dataset_id or f"{path.name}-v0"
        metadata = {"dataset_id": name, "minari_version": minari.__version__, "author": {"rollax"}}
        algorithm = reader.header.get("behaviour", {}).get("algorithm")
        stored.update_metadata({**metadata, "algorithm_name": str(algorithm or f"rollax {rollax.__version__}")})
    warn_of_logp(path, with_logp)
    if with_infos:
        log.warning("%s: the infos of %d episodes are left out.", path, with_infos)
    return count


def _refuse_full_disk(file: Path, trajectory: RecordedTrajectory) -> None:
    """Raises OSError if a trajectory does not fit on the disk: HDF5 would crash the process when it closes the file."""
    arrays = [
        leaf for name in (SampleBatch.OBS, SampleBatch.ACTIONS) for leaf in trees.leaves(trajectory.columns[name])
    ]
    # The environment's actions take at most 8 times as many bytes as the policy's actions.
    room = _ROOM + 8 * sum(np.asarray(leaf).nbytes for leaf in arrays)
    written = file.stat().st_size if file.exists() else 0
    with tempfile.TemporaryFile(dir=file.parent) as probe:
        try:
            os.posix_fallocate(probe.fileno(), written, room)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that cannot reserve space
                raise


def _check_keys(space: Space, storage: str, where: str) -> None:
    """Raises DatasetError for a Dict with a key that Minari cannot store."""

    def check(outer: Space, place: tuple[Any, ...]) -> None:
        for key in outer.spaces if isinstance(outer, Dict) else ():
            at = where + path_text((*place, key))
            if not isinstance(key, str):
                what = "A key is not a string, so Minari cannot store it."
                raise DatasetError(what, at, key, fix="convert to rollax's own format")
            if storage == "hdf5" and "/" in key:
                what = "A key contains a slash, which HDF5 reads as a path."
                raise DatasetError(what, at, key, fix="convert to minari_arrow")

    walk(lambda leaf, place: None, space, enter=check)


def _buffer(trajectory: RecordedTrajectory, reader: DatasetReader) -> Any:
    columns, steps = trajectory.columns, len(trajectory)
    flags = np.zeros((2, steps), bool)
    flags[:, -1] = trajectory.terminated, trajectory.truncated
    return EpisodeBuffer(
        observations=columns[SampleBatch.OBS],
        actions=env_actions(trajectory, reader),
        rewards=columns[SampleBatch.REWARDS],
        terminations=flags[0],
        truncations=flags[1],
    )
