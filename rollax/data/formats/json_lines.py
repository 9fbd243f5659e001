"""JSON lines of a policy server: one episode per line, as its clients send it (`rollax.serving.protocol.Episode`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.data.dataset import WITH_LAST, RecordedTrajectory
from rollax.data.formats.common import DEFAULT_AGENT, DEFAULT_POLICY, FormatReader, columns_of
from rollax.errors import DatasetError


class JsonLinesReader(FormatReader):
    """Reads `{"agents": {ID: {"obs": [T + 1], "actions": [T], "rewards": [T], "terminated": false, ...}}}` lines.

    Actions are those of the environment; `action_logp` is that of the policy's action, before it was scaled, and null
    (read as NaN) where it is not known. The only agent of a line, with the id "agent0", acts from t = 0 on: a later `t`
    shows that the beginning is missing.

    Args:
        paths: the files.
        settings: as for `FormatReader`.
    """

    def __init__(self, paths: Sequence[Path], **settings: Any) -> None:
        super().__init__(**settings)
        self._paths = list(paths)
        self.header = {**self.header, "logp_of": "policy"}

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self._paths):
            for line, text in lines_of(path):
                try:
                    found = list(self._episode(text, f"{number}:{line}", f"{path}, line {line}"))
                except DatasetError as error:
                    self.skip(error)
                    continue
                yield from found

    def _episode(self, text: str, default_id: str, where: str) -> Iterator[RecordedTrajectory]:
        episode = parsed(text, where)
        agents = episode.get("agents")
        if not isinstance(agents, dict) or not agents:
            raise DatasetError("A line without agents.", where=where, got=sorted(episode), expected='{"agents": {...}}')
        for agent, data in agents.items():
            place = f"{where}, agent {agent!r}"
            try:
                found = self._trajectory(data, str(episode.get("episode_id") or default_id), agent, place)
                found.continues = list(agents) == [DEFAULT_AGENT] and bool(found.columns[SampleBatch.T][0] > 0)
                yield found
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise DatasetError(
                    "A trajectory that cannot be read.",
                    where=place,
                    got=f"{type(error).__name__}: {error}",
                    expected="obs [T + 1], actions [T], rewards [T]",
                ) from error

    def _trajectory(self, data: dict[str, Any], episode: str, agent: str, where: str) -> RecordedTrajectory:
        steps = len(data["rewards"])
        columns = {
            SampleBatch.OBS: columns_of(self.observation_space, data["obs"], "obs", where),
            SampleBatch.ACTIONS: columns_of(self.action_space, data["actions"], "actions", where),
        }
        columns[SampleBatch.REWARDS] = np.array(data["rewards"], np.float64)
        columns[SampleBatch.T] = np.array(data.get("t") or range(steps), np.int64)
        if data.get("action_logp") is not None:
            columns[SampleBatch.ACTION_LOGP] = np.array(data["action_logp"], np.float32)
        if data.get("infos") is not None:
            infos = np.empty(steps + 1, object)
            infos[:] = [{}, *data["infos"]]
            columns[SampleBatch.INFOS] = infos
        lengths = {name: trees.length(column) for name, column in columns.items()}
        if not steps or any(length != steps + (name in WITH_LAST) for name, length in lengths.items()):
            raise DatasetError(
                "Columns of the wrong length.",
                where=where,
                got=lengths,
                expected="obs [T + 1], actions [T], rewards [T], and action_logp and t, if they are there, [T]",
            )
        terminated, truncated = bool(data.get("terminated", False)), bool(data.get("truncated", False))
        return RecordedTrajectory(columns, terminated, truncated, episode, agent, DEFAULT_POLICY, where)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The number and text of each line that is not empty; DatasetError for a file that cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            "A file that cannot be read.", where=path, got=f"{type(error).__name__}: {error}", expected="text in UTF-8"
        ) from error


def parsed(text: str, where: str) -> dict[str, Any]:
    """The object on a line; DatasetError for a line that is truncated or no object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        truncated = "" if text.endswith("\n") else ", which does not end in a line break"
        raise DatasetError(
            "A line that is truncated, or no JSON.",
            where=where,
            got=f"{error}, in a line of {len(text)} characters{truncated}",
            expected="one JSON object per line",
            fix="remove the line, or skip some with max_broken",
        ) from error
    if not isinstance(value, dict):
        raise DatasetError(
            "A line that is no JSON object.", where=where, got=type(value).__name__, expected="an object"
        )
    return value
