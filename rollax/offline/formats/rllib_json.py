"""RLlib's old JSON files: one batch of rows per line."""

from __future__ import annotations

import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import DEFAULT_POLICY, SampleBatch
from rollax.core import trees
from rollax.core.spaces import path_text
from rollax.errors import DatasetError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.formats.common import ANOTHER_FILE, FormatReader, Ids, columns_of, decoding, one_per_step
from rollax.offline.formats.joining import Assembler, Piece
from rollax.offline.formats.json_lines import objects_of

_TYPES = ("SampleBatch", "MultiAgentBatch")
_FURTHER = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS, SampleBatch.T)


class RLlibJsonReader(FormatReader):
    """Reads files of `SampleBatch` and `MultiAgentBatch` lines, written by RLlib's `output`.

    Rows of an episode in several lines are joined by `eps_id`, `agent_index` and policy; also over consecutive files of
    a worker, if `t` continues. Rows after a skipped line, a missing file or missing rows (see `Assembler`) are not
    joined, but read as a trajectory that continues another. A row whose `t` does not grow, or that follows the end
    of a trajectory, begins another episode, even with the same `eps_id`. Without `terminateds`, `dones` counts as
    terminated. Without `new_obs`, the last step of a trajectory without a termination is left out. The trajectories of
    an episode are adjacent, unless an agent joins in a later line, after all others of the episode have ended.

    RLlib records its policies' actions: with its default `normalize_actions=True`, actions of a bounded Box are in
    [-1, 1]. `actions_of="environment"` is for files with the actions that the environment received.

    Args: as for `FormatReader`.
    """

    actions_of = "policy"

    def _read(self) -> Iterator[RecordedTrajectory]:
        workers: dict[Hashable, _Worker] = {}
        for number, path in enumerate(self.paths):
            worker = workers.setdefault(_worker_of(path), _Worker(self.skip))
            worker.begin_file(number)
            for line, found in objects_of(path):
                where = f"{path}, line {line}"
                try:
                    if isinstance(found, DatasetError):
                        raise found
                    batches = _batches(found, where)
                    pieces = [piece for policy, data in batches for piece in self._pieces(policy, data, where)]
                except DatasetError as error:
                    self.skip(error)
                    worker.skipped_line()
                else:
                    yield from worker.add(pieces)
            yield from worker.end_file()
        for worker in workers.values():
            worker.assembler.finish_all()
            yield from worker.assembler.release()
            self.left_out += worker.assembler.left_out

    def _pieces(self, policy: str, data: Mapping[str, Any], where: str) -> Iterator[Piece]:
        """The rows of each trajectory on a line; their keys are `eps_id`, `agent_index`, policy."""
        observation_space, action_space = self.spaces_of(policy, where)
        space_of = {"obs": observation_space, "actions": action_space, "new_obs": observation_space}
        for name in space_of:
            _refuse_packed(name, data.get(name), where)
        with decoding("obs, actions, rewards and new_obs of equal length", where):
            columns = {
                name: columns_of(space_of.get(name), data[name], name, where)
                for name in ("obs", "actions", *(name for name in ("new_obs", *_FURTHER) if name in data))
            }
            columns[SampleBatch.REWARDS] = rewards = one_per_step(data["rewards"], "rewards", where)
            rows = len(rewards)
            zeros = [False] * rows
            terminated = one_per_step(data.get("terminateds", data.get("dones", zeros)), "terminateds", where, bool)
            truncated = one_per_step(data.get("truncateds", zeros), "truncateds", where, bool)
            episodes = list(map(str, data.get("eps_id", [0] * rows)))
            agents = list(data.get("agent_index", [0] * rows))
            hash(tuple(agents))
            leaves = (leaf for column in columns.values() for leaf in trees.leaves(column))
            lengths = set(map(len, (terminated, truncated, episodes, agents, *leaves)))
            if lengths != {rows}:
                raise ValueError(f"columns of {sorted(lengths)} rows")
            t = columns.get(SampleBatch.T, zeros)
            if np.ndim(t) != 1 or not np.isfinite(t).all():
                raise ValueError("t is not a number for each row")
        start = 0
        for row in range(rows):
            here = episodes[row], agents[row]
            ends = bool(terminated[row]), bool(truncated[row])
            restarts = row + 1 < rows and SampleBatch.T in columns and t[row + 1] <= t[row]
            if any(ends) or restarts or row + 1 == rows or here != (episodes[row + 1], agents[row + 1]):
                part = {name: trees.index(column, slice(start, row + 1)) for name, column in columns.items()}
                yield Piece((*here, policy), part, ends, part.pop(SampleBatch.NEW_OBS, None), where)
                start = row + 1


class _Unfinished(NamedTuple):
    """An unfinished trajectory: the id of its episode, and the `t` of its next step, if there is a `t`."""

    episode: str
    next_t: int | None


class _Worker:
    """Joins the output of one RLlib worker; `skip` gets the error of a trajectory whose rows do not fit together."""

    def __init__(self, skip: Callable[[DatasetError], None]) -> None:
        self.assembler = Assembler(skip)
        self._unfinished: dict[Ids, _Unfinished] = {}
        self._not_in_this_file: set[Ids] = set()
        self._begun: Counter[Ids] = Counter()  # number of trajectories that began in this file
        self._going_on: dict[str, str] = {}  # `eps_id` -> the episode that goes on from an earlier file
        self._agents: defaultdict[str, set[Ids]] = defaultdict(set)  # episode -> the keys of its trajectories
        self._after_skipped = False
        self._file = 0

    def begin_file(self, number: int) -> None:
        self._file, self._not_in_this_file = number, set(self._unfinished)
        self._going_on = {key[0]: found.episode for key, found in self._unfinished.items()}
        for episode in self._agents.keys() - self._going_on.values():
            del self._agents[episode]
        self._begun.clear()

    def add(self, pieces: Sequence[Piece]) -> Iterator[RecordedTrajectory]:
        """Adds the rows of a line; returns the trajectories of finished episodes."""
        for piece in pieces:
            self._add(piece)
        self._after_skipped = False
        return self._over()

    def skipped_line(self) -> None:
        """Cuts all trajectories, because the next line may not have the next step."""
        self._after_skipped = True
        self.assembler.finish_all()

    def end_file(self) -> Iterator[RecordedTrajectory]:
        """Cuts trajectories without rows in this file, because the next file does not continue them."""
        for key, found in list(self._unfinished.items()):
            if key in self._not_in_this_file:
                self.assembler.finish((found.episode, key[1], key[2]))
                if found.next_t is None:
                    del self._unfinished[key]
        return self._over()

    def _over(self) -> Iterator[RecordedTrajectory]:
        return self.assembler.release({found.episode for found in self._unfinished.values()})

    def _add(self, piece: Piece) -> None:
        _, agent, policy = piece.key
        t = piece.columns.get(SampleBatch.T)
        first_t = None if t is None else int(t[0])
        before = self._unfinished.pop(piece.key, None)
        if before is not None:
            another = first_t is not None and before.next_t is not None and first_t < before.next_t
            missing = piece.key in self._not_in_this_file and (first_t is None or first_t != before.next_t)
            if another or missing:
                self.assembler.finish((before.episode, agent, policy))
            if another:  # another episode with the same eps_id
                before = None
        self._not_in_this_file.discard(piece.key)
        episode = self._new_episode(piece.key) if before is None else before.episode
        self._agents[episode].add(piece.key)
        if not any(piece.ends):
            self._unfinished[piece.key] = _Unfinished(episode, None if t is None else int(t[-1]) + 1)
        continues = before is not None or self._begins_late(first_t, agent)
        self.assembler.add(piece._replace(key=(episode, agent, policy)), continues=continues)

    def _new_episode(self, key: Ids) -> str:
        """The episode id of a new trajectory; in a file without `eps_id`, many trajectories have the same key."""
        going_on = self._going_on.get(key[0])
        if going_on is not None and key not in self._agents[going_on]:  # an agent that joins in this file
            return going_on
        self._going_on.pop(key[0], None)  # an agent begins again, so another episode has begun
        earlier, self._begun[key] = self._begun[key], self._begun[key] + 1
        return f"{self._file}:{key[0]}" + (f"#{earlier}" if earlier else "")

    def _begins_late(self, first_t: int | None, agent: Hashable) -> bool:
        """Whether the first rows of a trajectory are not the beginning of its episode."""
        if first_t == 0:
            return False
        # RLlib's agent 0 acts from the first step on; others may join later.
        return self._after_skipped or (first_t is not None and agent == 0)


def _worker_of(path: Path) -> Hashable:
    """The worker that wrote a file, from RLlib's file names; other files of a folder are assigned to one worker."""
    found = re.search(r"worker-\d+", path.name)
    return path.parent, found and found.group()


def _batches(data: Mapping[str, Any], where: str) -> list[tuple[str, Mapping[str, Any]]]:
    if data.get("type") not in _TYPES:
        raise DatasetError("The line is of an unknown type.", where, data.get("type"), expected=" or ".join(_TYPES))
    if data["type"] == "SampleBatch":
        return [(DEFAULT_POLICY, data)]
    batches = data.get("policy_batches")
    if not isinstance(batches, dict) or not all(isinstance(batch, dict) for batch in batches.values()):
        raise DatasetError("A MultiAgentBatch has no policy_batches.", where, reprlib.repr(batches)).expected(
            "an object with a batch, which is an object, for each policy", ANOTHER_FILE
        )
    return list(batches.items())


def _refuse_packed(name: str, value: Any, where: str, path: tuple[Any, ...] = ()) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_packed(name, part, where, (*path, key))
    elif isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, str) for part in value[:1])):
        what, place = "A column is packed as a pickle, which is never loaded.", f"column {name!r}{path_text(path)}"
        raise DatasetError(what, f"{where}, {place}", "text in place of numbers").fix(
            "write the data again in RLlib with output_compress_columns=[]"
        )
