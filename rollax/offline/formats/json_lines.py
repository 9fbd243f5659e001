"""JSON lines of a policy server: one episode per line, as its clients send it (`rollax.serving.protocol.Episode`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core import trees
from rollax.core.storage import parsed_json
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import DatasetError
from rollax.offline.dataset import WITH_LAST, RecordedTrajectory
from rollax.offline.formats.common import FormatReader, columns_of, decoding, lines_of, one_per_step

_COLUMNS = "obs [T + 1], actions [T], rewards [T], and, if present, action_logp [T] and t [T]"


class JsonLinesReader(FormatReader):
    """Reads `{"agents": {ID: {"obs": [T + 1], "actions": [T], "rewards": [T], "terminated": false, ...}}}` lines.

    `actions` are the actions that the environment received; `action_logp` is the log-probability of the policy's
    action before it is scaled, or null (read as NaN) if unknown. A single agent named "agent0" acts from t = 0 on, so
    a later first `t` shows that the beginning is missing. `terminated` and `truncated` are true, false, or lists
    with one value per step.

    Args:
        paths: the files.
        settings: as for `FormatReader`.
    """

    def __init__(self, paths: Sequence[Path], **settings: Any) -> None:
        super().__init__(paths, **settings)
        self.header = {**self.header, "logp_of": "policy"}

    def _read(self) -> Iterator[RecordedTrajectory]:
        for number, path in enumerate(self.paths):
            for line, episode in objects_of(path):
                try:
                    if isinstance(episode, DatasetError):
                        raise episode
                    # Other files may have the same ids, and some lines may have none.
                    given = episode.get("episode_id")
                    episode_id = f"{number}:{f'line {line}' if given in (None, '') else given}"
                    found = list(self._episode(episode, episode_id, f"{path}, line {line}"))
                except DatasetError as error:
                    self.skip(error)
                else:
                    yield from found

    def _episode(self, episode: dict[str, Any], episode_id: str, where: str) -> Iterator[RecordedTrajectory]:
        agents = episode.get("agents")
        if not isinstance(agents, dict) or not agents:
            raise DatasetError("The line has no agents.", where, sorted(episode), expected='{"agents": {...}}')
        for agent, data in agents.items():
            place = f"{where}, agent {agent!r}"
            with decoding(_COLUMNS, place):
                found = self._trajectory(data, episode_id, agent, place)
                found.continues = list(agents) == [DEFAULT_AGENT] and bool(found.columns[SampleBatch.T][0] > 0)
            yield found

    def _trajectory(self, data: dict[str, Any], episode: str, agent: str, where: str) -> RecordedTrajectory:
        steps = len(data["rewards"])
        observation_space, action_space = self.spaces_of(DEFAULT_POLICY, where)
        columns = {
            SampleBatch.OBS: columns_of(observation_space, data["obs"], "obs", where),
            SampleBatch.ACTIONS: columns_of(action_space, data["actions"], "actions", where),
            SampleBatch.REWARDS: one_per_step(data["rewards"], "rewards", where),
            SampleBatch.T: np.array(data.get("t") or range(steps), np.int64),
        }
        if data.get("action_logp") is not None:
            columns[SampleBatch.ACTION_LOGP] = np.array(data["action_logp"], np.float32)
        if data.get("infos") is not None:
            infos = np.empty(steps + 1, object)
            infos[:] = [{}, *data["infos"]]
            columns[SampleBatch.INFOS] = infos
        lengths = {name: trees.length(column) for name, column in columns.items()}
        if not steps or any(length != steps + (name in WITH_LAST) for name, length in lengths.items()):
            raise DatasetError("The columns have the wrong length.", where, lengths).expected(_COLUMNS)
        terminated, truncated = (_ended(data, name, steps, where) for name in ("terminated", "truncated"))
        return RecordedTrajectory(columns, terminated, truncated, episode, agent, DEFAULT_POLICY, where)


def _ended(data: dict[str, Any], name: str, steps: int, where: str) -> bool:
    """The flag `name`: a bool, or a list with one bool per step, of which only the last may be true."""
    given = data.get(name, False)
    flags = given if isinstance(given, list) else [False] * (steps - 1) + [given]
    if len(flags) != steps or not all(isinstance(flag, bool) for flag in flags) or any(flags[:-1]):
        raise DatasetError("The flag does not determine how the trajectory ended.", f"{where}, {name}", given).expected(
            f"true or false, or a list of {steps}, of which only the last may be true",
            "write JSON's true or false, and split the trajectory where it ended",
        )
    return flags[-1]


def objects_of(path: Path) -> Iterator[tuple[int, dict[str, Any] | DatasetError]]:
    """The number of each non-empty line, with its JSON object or its error."""
    number = 0
    try:
        with decoding("JSON lines", path), open(path, "rb") as file:
            for number, line in enumerate(lines_of(file, path), start=1):
                if line.strip():
                    yield number, _parsed(line, f"{path}, line {number}")
    except DatasetError as error:
        yield number + 1, error


def _parsed(line: bytes, where: str) -> dict[str, Any] | DatasetError:
    fix = "remove the line, or skip broken lines with max_broken"
    try:
        value = parsed_json(line.decode())
    except (ValueError, RecursionError) as error:
        truncated = "" if line.endswith(b"\n") else ", which does not end in a line break"
        got = f"{error}, in a line of {len(line)} bytes{truncated}"
        return DatasetError("The line is truncated, or is not JSON.", where, got).expected("JSON in UTF-8", fix)
    if not isinstance(value, dict):
        return DatasetError.is_not("The line", "a JSON object", where, type(value).__name__).fix(fix)
    return value
