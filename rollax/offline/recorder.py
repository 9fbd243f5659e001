"""`Recorder`: writes the trajectories of a sampler into a data set, with the environment's original values."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.batch.columns import positions_in
from rollax.config import TrainerConfig
from rollax.config.json_form import encode_values
from rollax.core import spaces, trees
from rollax.core.atomic_files import absolute
from rollax.core.importing import path_of
from rollax.env.rows import NO_ENVS, Rows
from rollax.errors import ConfigError
from rollax.offline.dataset import ENV_ACTIONS, RecordedTrajectory
from rollax.rollout.policy_rows import GivenActions
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.table import Table
from rollax.rollout.trajectories import Trajectories

if TYPE_CHECKING:
    from rollax.offline.writer import DatasetWriter
    from rollax.rollout.sampler import Sampler

log = logging.getLogger("rollax.offline")

_FINISHED_STEPS_AT_ONCE = 1 << 12
_MOST_BYTES = 1 << 30
_TRAJECTORY, _SEEN = "trajectory", "seen"
_LEFT_OUT = frozenset(
    {
        *(SampleBatch.OBS, SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS),
        *(SampleBatch.EPS_ID, SampleBatch.TRAJECTORY_ID, SampleBatch.AGENT_ID),
    }
)
"""The columns of a fragment that are not copied to the columns of a trajectory."""


class Recorder:
    """Collects the trajectories of all policies, independently of fragments, and writes whole episodes.

    Observations are written unfiltered. The policy's actions are written, and, if the action space contains a Box, also
    the actions that the environment received. Episodes that are not trained on, and episodes that were lost with their
    process, are left out. Rows that are not written yet take at most 1 GiB. Running episodes are written unfinished
    when the recorder is closed, when the sampler restarts, and when they take more than half of this memory.

    Without `explore`, no log-probabilities are written, because greedy actions have none.
    """

    def __init__(
        self,
        writer: DatasetWriter,
        runners: Mapping[str, PolicyRunner],
        *,
        explore: bool = True,
        infos: bool = False,
    ) -> None:
        self.writer = writer
        self._runners, self._explore, self._infos = runners, explore, infos
        self._number = 0
        self.restart()

    def restart(self) -> None:
        """Drops rows that are not written yet, before fresh episodes begin."""
        self._slots = Table(**{_TRAJECTORY: -1})
        self._trajectories: dict[str, Trajectories] = {}
        for policy_id, runner in self._runners.items():
            seen: dict[str, Any] = {"obs": trees.index(spaces.zeros(runner.policy.observation_space, 1), 0)}
            if self._infos:
                seen["infos"] = np.array(None, object)
            self._slots.add((_SEEN, policy_id), seen)
            kept, name = frozenset({SampleBatch.TRAJECTORY_ID}), f"pending row of {policy_id}"
            self._trajectories[policy_id] = Trajectories(kept, self._slots, name, reward_dtype=np.float64)
        self._ended: list[np.ndarray] = []  # in a poll that is not recorded yet
        self._finished: list[np.ndarray] = []
        self._finished_steps = self._kept = 0
        self._row_bytes = dict.fromkeys(self._runners, 0)

    @property
    def paths(self) -> Sequence[Path]:
        """The files written so far."""
        return self.writer.paths

    # Called by the sampler.

    def observe(
        self,
        policy_id: str,
        rows: Rows,
        selection: np.ndarray | None,
        obs: trees.Tree,
        complete: Any,
        outcomes: np.ndarray | None,
        ended: np.ndarray | None,
    ) -> None:
        """Records the outcomes and observations of one policy's rows of a poll; see `StepRecorder`."""
        seen: dict[str, Any] = {"obs": obs}
        self._slots.make_room(int(rows.slots.max(initial=-1)) + 1)
        observed = selection is None or len(selection)
        if observed and self._infos:
            from rollax.offline.formats.layout import plain_infos  # which imports PyArrow

            infos = rows.info_list()
            seen["infos"] = plain_infos(infos if selection is None else [infos[row] for row in selection.tolist()])
        if outcomes is None or len(outcomes):
            trajectories = self._trajectories[policy_id]
            trajectories.record_rows(rows, selection, {SampleBatch.OBS: seen}, complete, outcomes, ended)
        if observed:
            trees.put(self._slots[_SEEN, policy_id], rows.places(selection)[1], seen)

    def act(
        self,
        policy_id: str,
        rows: Rows,
        selection: np.ndarray | None,
        actions: trees.Tree,
        columns: Mapping[str, Any],
        numbers: tuple[np.ndarray, np.ndarray, np.ndarray],
        given: GivenActions | None = None,
    ) -> None:
        """Records one policy's actions for some rows; see `StepRecorder`."""
        trajectory, episode, t = numbers
        slots, runner = rows.places(selection)[1], self._runners[policy_id]
        self._slots[_TRAJECTORY][slots] = trajectory
        decided: dict[str, Any] = {
            SampleBatch.OBS: trees.index(self._slots[_SEEN, policy_id], slots),
            SampleBatch.ACTIONS: actions,
            SampleBatch.T: t,
            SampleBatch.AGENT_ID: rows.agent_ids(selection),
            **runner.policy.behaviour(actions, columns, self._explore),
        }
        if given is not None and SampleBatch.ACTION_LOGP in decided:
            decided[SampleBatch.ACTION_LOGP] = logp = np.array(decided[SampleBatch.ACTION_LOGP])
            logp[given.rows] = np.nan
            logp[list(given.logps)] = list(given.logps.values())
        if runner.action_map.boxes:
            decided[ENV_ACTIONS] = runner.action_map(actions)
            if given is not None:
                trees.put(decided[ENV_ACTIONS], given.rows, spaces.stack(runner.policy.action_space, given.values))
        row_bytes = sum(leaf[:1].nbytes for column in decided.values() for leaf in trees.leaves(column))
        if self._infos:
            from rollax.offline.formats.layout import bytes_of_info  # as in `observe`

            infos = decided[SampleBatch.OBS]["infos"]
            row_bytes += sum(map(bytes_of_info, infos)) // len(infos)
        self._row_bytes[policy_id] = row_bytes
        self._trajectories[policy_id].append(slots, trajectory, episode, decided)

    def forget(self, slots: np.ndarray) -> None:
        """Records that these slots have no pending row, because their new trajectories have not acted yet."""
        for trajectories in self._trajectories.values():
            trajectories.forget(slots)

    def drop(self, episodes: np.ndarray) -> None:
        """Drops episodes that were lost."""
        for trajectories in self._trajectories.values():
            trajectories.drop(episodes)

    def end(self, episodes: np.ndarray, lengths: np.ndarray, counted: np.ndarray) -> None:
        """Records the ends of episodes at this poll; drops episodes that do not count."""
        if not counted.all():
            self.drop(episodes[~counted])
        self._ended.append(episodes[counted])
        self._finished_steps += int(lengths[counted].sum())

    def polled(self) -> None:
        """After each poll: writes finished episodes, if enough, or all rows, if running episodes fill the memory.

        A write moves the rows that stay in memory, so the next write waits until there are twice as many rows.
        """
        self._finished, self._ended = [*self._finished, *self._ended], []
        waiting = {policy_id: len(rows) for policy_id, rows in self._trajectories.items()}
        full = sum(self._row_bytes[policy_id] * rows for policy_id, rows in waiting.items()) > _MOST_BYTES
        if sum(waiting.values()) < 2 * self._kept:
            if full:
                self.write_running()
        elif full or self._finished_steps >= _FINISHED_STEPS_AT_ONCE:
            self.write_finished()

    # Writing.

    def write_finished(self) -> None:
        """Writes the episodes that have ended."""
        finished = np.concatenate(self._finished) if self._finished else NO_ENVS
        self._finished, self._finished_steps = [], 0
        self._write(finished, finished)

    def write_running(self) -> None:
        """Writes all complete rows; running episodes become cut trajectories."""
        self.write_finished()
        self._write(None, NO_ENVS)

    def cut_running(self) -> None:
        """Writes all complete rows, before fresh episodes begin."""
        self.write_running()
        self.restart()

    def drop_running(self) -> None:
        """Writes the episodes that have ended, and drops all other rows, before fresh episodes begin."""
        with _if_consistent():
            self.write_finished()
        self.restart()

    def close(self) -> None:
        """Writes all complete rows and completes the file."""
        try:
            with _if_consistent():
                self.write_running()
        finally:
            self.writer.close()

    def _write(self, finished: np.ndarray | None, order: np.ndarray) -> None:
        recorded: list[tuple[int, RecordedTrajectory]] = []
        for policy_id, trajectories in self._trajectories.items():
            fragment = trajectories.cut(lambda numbers, p=policy_id: self._waiting(p, numbers), finished)
            if fragment is not None:
                recorded += self._recorded(policy_id, fragment)
        rank = {episode: place for place, episode in enumerate(order.tolist())}
        recorded.sort(key=lambda one: rank.get(one[0], one[0]))  # stable: keeps the order of policies and trajectories
        self._kept = sum(map(len, self._trajectories.values()))
        for _, trajectory in recorded:
            self.writer.write(trajectory)

    def _waiting(self, policy_id: str, numbers: np.ndarray) -> dict[str, trees.Tree]:
        """The observations on which these trajectories act next."""
        slots = positions_in(self._slots[_TRAJECTORY], numbers)
        return {SampleBatch.OBS: trees.index(self._slots[_SEEN, policy_id], slots)}

    def _recorded(self, policy_id: str, fragment: Fragment) -> list[tuple[int, RecordedTrajectory]]:
        """Each segment of a fragment, with the id of its episode."""
        found = []
        taken = [n for n in fragment if n not in _LEFT_OUT]
        last = trees.concat((fragment.after[SampleBatch.OBS],))
        for number, (start, end) in enumerate(zip(fragment.starts.tolist(), fragment.ends.tolist(), strict=True)):
            rows = slice(start, end + 1)
            columns = {name: trees.tree_map(np.copy, trees.index(fragment[name], rows)) for name in taken}
            seen = trees.concat(
                (trees.index(fragment[SampleBatch.OBS], rows), trees.index(last, slice(number, number + 1)))
            )
            columns = {SampleBatch.OBS: seen["obs"], **columns}
            if self._infos:
                columns[SampleBatch.INFOS] = seen["infos"]
            episode = int(fragment[SampleBatch.EPS_ID][start])
            trajectory = RecordedTrajectory(
                columns,
                bool(fragment[SampleBatch.TERMINATEDS][end]),
                bool(fragment[SampleBatch.TRUNCATEDS][end]),
                f"{episode:x}-{self.writer.token}",
                fragment[SampleBatch.AGENT_ID][start],
                policy_id,
            )
            found.append((episode, trajectory))
        return found


@contextmanager
def _if_consistent() -> Iterator[None]:
    """Logs the error of a write of rows that an interrupt has left inconsistent."""
    try:
        yield
    except (IndexError, ValueError, KeyError):
        log.warning("Sampling was interrupted: the last episodes were not written.", exc_info=True)


def make_recorder(config: TrainerConfig, sampler: Sampler, worker_index: int) -> Recorder:
    """The recorder of a worker, into the folder `config.output`.

    Raises ConfigError if PyArrow is missing, DatasetError if the folder cannot be written to.
    """
    from rollax.errors import not_installed

    try:
        from rollax.offline.new_file import check_folder
        from rollax.offline.writer import DatasetWriter
    except ImportError as error:
        raise not_installed(
            "Writing experience", error, where="config key 'output'", package="pyarrow", extra="offline"
        ) from error
    assert config.output is not None
    runners = sampler.runners

    # In a file of settings, a wrapper with keyword arguments is a list.
    wrappers = [list(one) if isinstance(one, tuple) else one for one in config.env_wrappers]

    def header() -> dict[str, Any]:
        filters = {policy_id: _plain(runner.filter.state()) for policy_id, runner in runners.items()}
        algorithm = type(config).__name__.removesuffix("Config")
        played = {"timesteps": sampler.timestep, "explore": config.explore}
        policies = {policy_id: path_of(runner.policy.made_by) for policy_id, runner in runners.items()}
        return {
            "env": config.env if isinstance(config.env, str) else getattr(config.env, "__qualname__", None),
            **encode_values({"env_wrappers": wrappers}),
            "behaviour": {"algorithm": algorithm, "policies": policies, **played},
            "normalize_actions": config.normalize_actions,
            "clip_actions": config.clip_actions,
            "observation_filter": config.observation_filter,
            "filters": filters,
            "worker_index": worker_index,
        }

    check_folder(config.output)  # raise now, not after hours
    writer = DatasetWriter(
        absolute(config.output, ConfigError),
        {policy_id: runner.policy.observation_space for policy_id, runner in runners.items()},
        {policy_id: runner.policy.action_space for policy_id, runner in runners.items()},
        header=header,
        actions_of="policy",
        prefix=f"worker{worker_index:03d}",
        compression=config.output_compress,
        max_file_size=config.output_max_file_size,
    )
    return Recorder(writer, runners, explore=config.explore, infos=config.output_infos)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in state.items()}
