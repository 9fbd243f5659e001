"""Conversion of data sets between formats: `rollax data convert`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.errors import ConfigError, DatasetError, nearest
from rollax.offline.dataset import ENV_ACTIONS, DatasetReader, RecordedTrajectory, env_actions, has_box_actions
from rollax.offline.formats.common import check_spaces_known, warn_of_logp
from rollax.offline.new_file import NewFile, new_folder
from rollax.offline.reader import SUFFIXES

log = logging.getLogger("rollax.offline")

_SETTINGS = {
    "rollax": ("prefix", "compression", "max_file_size"),
    "minari": ("dataset_id",),
    "minari_arrow": ("dataset_id",),
    "json_lines": (),
}
TARGETS = tuple(_SETTINGS)


def convert(reader: DatasetReader, out: str | Path, to: str = "rollax", **settings: Any) -> int:
    """Writes all trajectories of a data set in another format; returns their number.

    In rollax's own format, the ids of episodes get a prefix that is random for each written data set.

    JSON has neither NaN nor infinity: in JSON lines, an unknown log-probability (NaN) is null, and other such numbers
    are refused. JSON lines have the info dicts of steps, but no info dicts of resets and no policy ids; agent ids
    become strings. Minari's formats have no info dicts. A warning lists the parts that are left out. Keys of Dict
    spaces become strings in JSON; a reader that has the space restores the keys. Only rollax's own format keeps
    `RecordedTrajectory.continues` and `reward_left_out`.

    Args:
        out: a new or empty folder; for "json_lines" a new file.
        to: "rollax", "minari" (HDF5), "minari_arrow" or "json_lines". All formats except rollax's own store the actions
            that the environment received; of these formats, only JSON lines keep log-probabilities.
        settings: for rollax's own format `prefix`, `compression` and `max_file_size` of `DatasetWriter`; for Minari's
            `dataset_id`.
    Raises:
        ConfigError: `reader` is not a reader; an unknown format or setting; a file name without a suffix of JSON lines.
        DatasetError: the target exists, the data cannot be read, or the format cannot store it (the error names the
            file, column and step of a NaN or infinity). No file is left after an error.
    """
    if not isinstance(reader, DatasetReader):
        reading = "convert(open_dataset(path), out)"
        raise ConfigError.is_not("The data", "a DatasetReader", "convert(reader, out)", reader).fix(reading)
    path = Path(out)
    if to not in TARGETS:
        raise ConfigError.unknown("format to write", to, TARGETS, "to")
    known = _SETTINGS[to]
    for name in settings:
        if name not in known:
            what = f"The format {to} does not have this setting."
            raise ConfigError(what, "settings of convert", name).expected(
                f"some of {list(known)}", nearest(name, known) if known else "leave it out"
            )
    if to == "rollax":
        return _to_rollax(reader, path, settings)
    if to == "json_lines":
        return _to_json_lines(reader, path)
    from rollax.offline.formats.minari_format import write_minari

    return write_minari(reader, path, storage="hdf5" if to == "minari" else "arrow", **settings)


def _to_rollax(reader: DatasetReader, folder: Path, settings: Mapping[str, Any]) -> int:
    from rollax.offline.writer import DatasetWriter

    check_spaces_known(reader, folder)
    header = {key: value for key, value in reader.header.items() if key not in ("policies", "format_version")}
    spaces = reader.observation_spaces, reader.action_spaces
    described: Any = {"header": {**header, "converted": True}, "actions_of": reader.actions_of}
    count = 0
    with new_folder(folder) as temporary, DatasetWriter(temporary, *spaces, **described, **settings) as writer:
        for trajectory in reader.trajectories():
            # Data sets that are read together must not share ids, and many logs have the same ids, such as 0, 1, 2.
            writer.write(replace(trajectory, episode_id=f"{writer.token}:{trajectory.episode_id}"))
            count += 1
    return count


def _to_json_lines(reader: DatasetReader, path: Path) -> int:
    if path.suffix.lower() not in SUFFIXES["json_lines"]:
        raise ConfigError("The format of the file would not be recognized by its name.", "out", str(path)).expected(
            f"a name that ends in {' or '.join(SUFFIXES['json_lines'])}", f"name it {path.name}.jsonl"
        )
    count = first_infos = without_logp = 0
    policy_ids: set[str] = set()
    other_ids: set[str] = set()  # ids of agents, as strings
    with NewFile(path) as new:
        for _, adjacent in groupby(reader.trajectories(), key=lambda one: one.episode_id):
            episode = list(adjacent)
            agents = {str(one.agent_id): _plain_trajectory(one, reader) for one in episode}
            if len(agents) < len(episode):
                what = "An agent has several trajectories in one episode, which JSON lines cannot represent."
                got = [one.agent_id for one in episode]
                raise DatasetError(what, episode[0].where, got, fix="convert to rollax's own format")
            line = json.dumps({"episode_id": episode[0].episode_id, "agents": agents}, allow_nan=False)
            new.file.write(line.encode() + b"\n")
            count += len(episode)
            without_logp += sum(
                SampleBatch.ACTION_LOGP in one.columns and SampleBatch.ACTION_LOGP not in agents[str(one.agent_id)]
                for one in episode
            )
            policy_ids.update(one.policy_id for one in episode)
            other_ids.update(str(one.agent_id) for one in episode if not isinstance(one.agent_id, str))
            first_infos += sum(bool(one.columns[SampleBatch.INFOS][0]) for one in episode if _has_infos(one))
    if first_infos:
        log.warning("%s: the infos of %d resets are left out; JSON lines have only infos of steps.", path, first_infos)
    warn_of_logp(path, without_logp)
    if other_ids:
        log.warning(
            "%s: agent ids that are not strings are written as strings: %s.", path, ", ".join(sorted(other_ids))
        )
    if len(policy_ids) > 1:
        log.warning("%s: the policy ids %s are left out.", path, ", ".join(sorted(policy_ids)))
    return count


def _plain_trajectory(trajectory: RecordedTrajectory, reader: DatasetReader) -> dict[str, Any]:
    from rollax.offline.formats.layout import plain  # which imports PyArrow

    trajectory.check()
    columns = trajectory.columns
    sent = env_actions(trajectory, reader)
    for name in (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS):
        _refuse_not_finite(trajectory, name, sent if name == SampleBatch.ACTIONS else columns[name])
    found: dict[str, Any] = {
        "obs": plain(trees.unstack(columns[SampleBatch.OBS])),
        "actions": plain(trees.unstack(sent)),
        "rewards": columns[SampleBatch.REWARDS].tolist(),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated and not trajectory.terminated,
    }
    if SampleBatch.T in columns:
        found[SampleBatch.T] = columns[SampleBatch.T].tolist()
    # The density of a policy's action differs from the density of the scaled or clipped action, and JSON lines contain
    # densities of the policy's actions.
    of_same_action = not has_box_actions(trajectory) or reader.header.get("logp_of") == "policy"
    if SampleBatch.ACTION_LOGP in columns and ENV_ACTIONS not in columns and of_same_action:
        logp = columns[SampleBatch.ACTION_LOGP]
        _refuse_not_finite(trajectory, SampleBatch.ACTION_LOGP, np.where(np.isnan(logp), 0, logp))
        found[SampleBatch.ACTION_LOGP] = [None if np.isnan(one) else one for one in logp.tolist()]
    if _has_infos(trajectory):
        found[SampleBatch.INFOS] = [_plain_info(trajectory, step) for step in range(1, len(trajectory) + 1)]
    return found


def _has_infos(trajectory: RecordedTrajectory) -> bool:
    return SampleBatch.INFOS in trajectory.columns


def _plain_info(trajectory: RecordedTrajectory, step: int) -> Any:
    from rollax.offline.formats.layout import info_to_json

    text = info_to_json(trajectory.columns[SampleBatch.INFOS][step])
    return json.loads(text, parse_constant=lambda number: _refuse(trajectory, SampleBatch.INFOS, step, number))


def _refuse_not_finite(trajectory: RecordedTrajectory, name: str, column: Any) -> None:
    for leaf in trees.leaves(column):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            step = int(np.argwhere(~np.isfinite(leaf))[0][0])
            _refuse(trajectory, name, step, leaf[step])


def _refuse(trajectory: RecordedTrajectory, name: str, step: int, got: Any) -> NoReturn:
    raise DatasetError.not_finite("The data", f"{trajectory.place}, column {name!r}, step {step}", got).fix(
        "convert to rollax's own format, as JSON has no such numbers, or leave the episode out; `rollax data check` "
        "lists these numbers"
    )
