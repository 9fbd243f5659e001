"""RLlib's old JSON files: one batch of rows per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.data.dataset import RecordedTrajectory
from rollax.data.formats.common import Assembler, FormatReader, columns_of
from rollax.data.formats.json_lines import lines_of, parsed
from rollax.errors import DatasetError
from rollax.spaces import path_text

_TYPES = ("SampleBatch", "MultiAgentBatch")
_FURTHER = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS, SampleBatch.T)


class RLlibJsonReader(FormatReader):
    """Reads files of `SampleBatch` and `MultiAgentBatch` lines, which RLlib's `output` wrote.

    Rows of an episode that is divided over lines are joined by `eps_id`, `agent_index` and policy. `dones` without
    `truncateds` counts as terminated. Without `new_obs`, the last step of a trajectory without a termination is left
    out.

    RLlib records actions as its policies chose them: with its default `normalize_actions=True`, those of a bounded
    Box are in [-1, 1]. `actions_of="environment"` is for files with the actions that the environment received.

    Args:
        paths: the files.
        settings: as for `FormatReader`.
    """

    actions_of = "policy"

    def __init__(self, paths: Sequence[Path], **settings: Any) -> None:
        super().__init__(**settings)
        self._paths = list(paths)

    def trajectories(self) -> Iterator[RecordedTrajectory]:
        self.broken.clear()
        for number, path in enumerate(self._paths):
            assembler = Assembler()
            for line, text in lines_of(path):
                where = f"{path}, line {line}"
                try:
                    batches = _batches(parsed(text, where), where)
                    rows = [piece for policy, data in batches for piece in self._pieces(policy, data, number, where)]
                except DatasetError as error:
                    self.skip(error)
                    yield from assembler.rest()  # what follows may not be the next step
                    continue
                for piece in rows:
                    yield from assembler.add(*piece)
            yield from assembler.rest()

    def _pieces(self, policy: str, data: Mapping[str, Any], file: int, where: str) -> Iterator[tuple[Any, ...]]:
        for name in (SampleBatch.OBS, SampleBatch.NEW_OBS, SampleBatch.ACTIONS):
            _refuse_packed(name, data.get(name), where)
        try:
            columns = self._columns(data, where)
            rows = len(columns[SampleBatch.REWARDS])
            zeros = [False] * rows
            terminated = np.array(data.get("terminateds", data.get("dones", zeros)), bool)
            truncated = np.array(data.get("truncateds", zeros), bool)
            episodes = list(map(str, data.get("eps_id", [0] * rows)))
            agents = list(data.get("agent_index", [0] * rows))
            lengths = {
                len(terminated),
                len(truncated),
                len(episodes),
                len(agents),
                *map(trees.length, columns.values()),
            }
            if lengths != {rows}:
                raise ValueError(f"columns of {sorted(lengths)} rows")
            new_obs = data.get(SampleBatch.NEW_OBS)
            following = None if new_obs is None else columns_of(self.observation_space, new_obs, "new_obs", where)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DatasetError(
                "A batch that cannot be read.",
                where=where,
                got=f"{type(error).__name__}: {error}",
                expected="obs, actions and rewards of equal length",
            ) from error
        start = 0
        for row in range(rows):
            here = episodes[row], agents[row]
            ends = bool(terminated[row]), bool(truncated[row])
            if any(ends) or row + 1 == rows or here != (episodes[row + 1], agents[row + 1]):
                part = {name: trees.index(column, slice(start, row + 1)) for name, column in columns.items()}
                last = None if following is None else trees.index(following, row)
                yield (f"{file}:{here[0]}", here[1], policy), part, ends, last, where
                start = row + 1

    def _columns(self, data: Mapping[str, Any], where: str) -> dict[str, Any]:
        columns = {
            SampleBatch.OBS: columns_of(self.observation_space, data["obs"], "obs", where),
            SampleBatch.ACTIONS: columns_of(self.action_space, data["actions"], "actions", where),
            SampleBatch.REWARDS: np.array(data["rewards"], np.float64),
        }
        return columns | {name: columns_of(None, data[name], name, where) for name in _FURTHER if name in data}


def _batches(data: Mapping[str, Any], where: str) -> list[tuple[str, Mapping[str, Any]]]:
    if data.get("type") not in _TYPES:
        raise DatasetError("A line of another type.", where=where, got=data.get("type"), expected=" or ".join(_TYPES))
    if data["type"] == "SampleBatch":
        return [("default_policy", data)]
    batches = data.get("policy_batches")
    if not isinstance(batches, dict):
        raise DatasetError("A MultiAgentBatch without policy_batches.", where=where, got=sorted(data))
    return list(batches.items())


def _refuse_packed(name: str, value: Any, where: str, path: tuple[Any, ...] = ()) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_packed(name, part, where, (*path, key))
    elif isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, str) for part in value[:1])):
        raise DatasetError(
            "A packed column: a pickle, which is never loaded.",
            where=f"{where}, column {name!r}{path_text(path)}",
            got="text in the place of numbers",
            expected="lists of numbers",
            fix="write the data again in RLlib with output_compress_columns=[]",
        )
