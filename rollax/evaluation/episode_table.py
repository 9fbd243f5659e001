"""The books of running episodes: rewards, lengths, numbers and seeds of every sub-environment, as arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollax.env.rows import NO_ENVS, Rows
from rollax.evaluation.episode import Episode
from rollax.evaluation.metrics import EpisodeMetrics

_KEPT_POLLS = 100_000


class EpisodeTable:
    """Counts what happens in each sub-environment's episode.

    Args:
        num_envs: how many sub-environments there are; where the environment numbers episodes as they come, the table
            grows with the numbers.
        seed: of the run; None leaves the environments unseeded.
        first_env: the number, across all workers, of the first sub-environment here.
        first_id: episode ids count up from here.
        first_episode: so many episodes count as begun in each sub-environment: the seeds are those of the next ones.
        on_start, on_step, on_end: called with an `Episode`; None where nobody listens.
        only_policy: the policy of every agent, where there is one.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        seed: int | None = None,
        first_env: int = 0,
        first_id: int = 0,
        first_episode: int = 0,
        on_start: Callable[[Episode], Any] | None = None,
        on_step: Callable[[Episode], Any] | None = None,
        on_end: Callable[[Episode], Any] | None = None,
        only_policy: str | None = None,
    ) -> None:
        self.num_envs = num_envs
        self._trains = np.ones(num_envs, bool)
        self._all_train = True
        self.rewards = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)
        self.ids = np.full(num_envs, -1, np.int64)
        self.begun = np.full(num_envs, first_episode, np.int64)
        self.finished_steps = 0
        self._seed, self._first_env = seed, first_env
        self.next_id = first_id
        self._on_start, self._on_step, self._on_end = on_start, on_step, on_end
        self._slot_rewards = np.zeros(64)
        self._running: dict[int, Episode] = {}  # only those that somebody has asked for
        # What has ended since the last `take_metrics`, bounded for a worker whose metrics nobody takes: trajectories as
        # (episode ids, policy numbers, rewards), episodes as (episode ids, sub-environments, rewards, lengths).
        self._ended_trajectories: deque[tuple[np.ndarray, ...]] = deque(maxlen=_KEPT_POLLS)
        self._ended: deque[tuple[np.ndarray, ...]] = deque(maxlen=_KEPT_POLLS)
        self._custom_metrics: dict[int, dict[str, float]] = {}
        self._finished: list[np.ndarray] = []
        self._only_policy = only_policy
        self.past: dict[int, Episode] | None = None
        """The episodes finished since somebody emptied this, by id; None where nobody reads it."""

    def episode(self, env_index: int) -> Episode:
        """The running episode of a sub-environment, for callbacks, mappings and policies."""
        episode = self._running.get(env_index)
        if episode is None:
            episode = Episode(
                int(self.ids[env_index]), env_index, self.rewards, self.lengths, only_policy=self._only_policy
            )
            self._running[env_index] = episode
        return episode

    def by_id(self, episode_id: int) -> Episode:
        """An episode that is running or in `past`."""
        if self.past and episode_id in self.past:
            return self.past[episode_id]
        return self.episode(int((self.ids == episode_id).nonzero()[0][0]))

    def seeds(self) -> list[int] | None:
        """For the first reset of each sub-environment, from (seed, its number, the episodes it has begun)."""
        if self._seed is None:
            return None
        begun = self.begun.tolist()
        sources = [(self._seed, self._first_env + index, begun[index]) for index in range(self.num_envs)]
        return [int(np.random.SeedSequence(source).generate_state(1)[0]) >> 1 for source in sources]  # signed in ale-py

    def make_room(self, slots: int) -> None:
        """Slots up to this number may be used."""
        self._slot_rewards = np.append(self._slot_rewards, np.zeros(max(slots - len(self._slot_rewards), 0)))

    def make_room_for_envs(self, num_envs: int) -> None:
        """Sub-environments up to this number may be used."""
        if num_envs > len(self.ids):
            size = 2 * num_envs
            self.rewards = _grown(self.rewards, size, 0)
            self.lengths = _grown(self.lengths, size, 0)
            self.begun = _grown(self.begun, size, 0)
            self._trains = _grown(self._trains, size, True)
            self.ids = _grown(self.ids, size, -1)  # the last one: an interrupt before it leaves all to be done again
            for episode in self._running.values():
                episode.read_from(self.rewards, self.lengths)

    def begin(
        self, env_index: np.ndarray, slots: np.ndarray, trains: np.ndarray | None, *, several_agents: bool = True
    ) -> None:
        """Trajectories begin in these sub-environments; where no episode runs, one begins.

        Args:
            env_index: one entry per trajectory.
            slots: the slot of each.
            trains: false where the episode is only served; None: all are learned from.
            several_agents: an entry may occur more than once.
        """
        self._slot_rewards[slots] = 0.0  # a trajectory that was dropped has left its own
        if trains is not None or not self._all_train:
            self._trains[env_index] = True if trains is None else trains
            self._all_train = bool(self._trains.all())
        new = env_index[self.ids[env_index] < 0]
        if several_agents:
            new = np.unique(new)
        self.ids[new] = np.arange(self.next_id, self.next_id + len(new))
        self.next_id += len(new)
        self.begun[new] += 1
        self.rewards[new] = 0.0
        self.lengths[new] = 0
        if self._on_start:
            for index in new.tolist():
                self._on_start(self.episode(index))

    def add_rewards(self, rows: Rows, outcomes: np.ndarray | None) -> int:
        """Adds a poll's rewards; returns the number of env steps to learn from that it was.

        Args:
            rows: what was polled.
            outcomes: the rows that have an outcome; None for all.
        """
        index, slots, rewards = rows.env_index, rows.slots, rows.rewards
        if outcomes is not None:
            index, slots, rewards = index[outcomes], slots[outcomes], rewards[outcomes]
        self._slot_rewards[slots] += rewards
        if rows.agents is None and not self._on_step:  # one row for each sub-environment that has stepped
            self.rewards[index] += rewards
            self.lengths[index] += 1
            if self._on_end and len(rows.ended_envs):
                self._note_infos(rows, np.isin(rows.env_index, rows.ended_envs) & ~rows.starts)
            return len(index) if self._all_train else int(np.count_nonzero(self._trains[index]))
        self.rewards += np.bincount(index, rewards, len(self.ids))
        stepped = np.zeros(len(self.ids), bool)
        stepped[index] = True
        if outcomes is not None:
            # An agent that appears in a running episode is news of a step too, though it has no outcome itself.
            stepped[rows.env_index] = self.ids[rows.env_index] >= 0
        if len(rows.ended_envs):  # perhaps after the last agent's end: without a row
            stepped[rows.ended_envs] = self.ids[rows.ended_envs] >= 0
        self.lengths += stepped
        if self._on_step or self._on_end:
            self._note_infos(rows, stepped[rows.env_index])
        if self._on_step:
            for env_index in stepped.nonzero()[0].tolist():
                self._on_step(self.episode(env_index))
        return int(np.count_nonzero(stepped if self._all_train else stepped & self._trains))

    def _note_infos(self, rows: Rows, noted: np.ndarray) -> None:
        """Puts the infos of some rows, given as a mask, into `last_infos` of their episodes."""
        infos = rows.info_list()
        for row in noted.nonzero()[0].tolist():
            self.episode(int(rows.env_index[row])).last_infos[rows.agent_of(row)] = infos[row]

    def end_trajectories(self, rows: Rows, ended: np.ndarray, policies: np.ndarray | None) -> None:
        """Records the rewards of trajectories that have ended, by policy number (None: there is one policy)."""
        slots = rows.slots[ended]
        numbers = np.zeros(len(ended), np.int64) if policies is None else policies[ended]
        self._ended_trajectories.append((self.ids[rows.env_index[ended]], numbers, self._slot_rewards[slots]))
        self._slot_rewards[slots] = 0.0

    def end(self, env_index: np.ndarray) -> None:
        """The episodes of these sub-environments are over."""
        env_index = env_index[self.ids[env_index] >= 0]  # where nobody has lived, there was no episode
        ids, lengths = self.ids[env_index], self.lengths[env_index]
        if self._on_end:
            for index in env_index.tolist():
                self._on_end(self.episode(index))
        if self.past is not None:
            self.past.update((int(self.ids[index]), self.episode(index).finished()) for index in env_index.tolist())
        if self._running:
            for index, episode_id in zip(env_index.tolist(), ids.tolist(), strict=True):
                episode = self._running.pop(index, None)
                if episode is not None and episode.custom_metrics:
                    self._custom_metrics[episode_id] = episode.noted_metrics()
        self._ended.append((ids, env_index, self.rewards[env_index], lengths))
        self.ids[env_index] = -1
        if not self._all_train:
            trains = self._trains[env_index]
            ids, lengths = ids[trains], lengths[trains]
        if len(ids):
            self._finished.append(ids)
            self.finished_steps += int(lengths.sum())

    def ids_to_learn(self, env_index: np.ndarray) -> np.ndarray:
        """The ids of the running episodes of these sub-environments; -1 where the episode is only served."""
        ids = self.ids[env_index]
        return ids if self._all_train else np.where(self._trains[env_index], ids, -1)

    def drop(self, env_index: np.ndarray) -> np.ndarray:
        """Forgets the running episodes of these sub-environments; returns their ids."""
        ids = self.ids[env_index]
        self._forget_trajectories(ids[ids >= 0])
        self.ids[env_index] = -1
        for index in env_index.tolist():
            self._running.pop(index, None)
        return ids[ids >= 0]

    def take_finished(self) -> tuple[np.ndarray, int]:
        """The ids of the episodes finished since the last call, and their env steps."""
        finished = np.concatenate(self._finished) if self._finished else NO_ENVS
        steps, self.finished_steps, self._finished = self.finished_steps, 0, []
        return finished, steps

    def take_metrics(self, policy_ids: Sequence[str]) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call.

        Args:
            policy_ids: the names of the policy numbers.
        """
        by_episode: dict[int, dict[str, list[float]]] = {}
        trajectories = tuple(map(np.concatenate, zip(*self._ended_trajectories, strict=True)))
        for episode_id, number, reward in zip(*(column.tolist() for column in trajectories), strict=True):
            policy_rewards = by_episode.setdefault(episode_id, {})
            policy_rewards.setdefault(str(policy_ids[number]), []).append(reward)
        metrics = []
        for columns in self._ended:
            for episode_id, index, reward, length in zip(*(column.tolist() for column in columns), strict=True):
                custom = self._custom_metrics.pop(episode_id, {})
                metrics.append(EpisodeMetrics(reward, length, by_episode.pop(episode_id, {}), custom, index))
        still: deque[tuple[np.ndarray, ...]] = deque(maxlen=_KEPT_POLLS)
        if by_episode:  # trajectories may end before their episode: those wait for it
            waiting = np.isin(trajectories[0], list(by_episode))
            still.append(tuple(column[waiting] for column in trajectories))
        self._ended_trajectories, self._ended = still, deque(maxlen=_KEPT_POLLS)
        return metrics

    def drop_running(self) -> None:
        """Forgets the running episodes."""
        self._forget_trajectories(self.ids[self.ids >= 0])
        self.ids[:] = -1
        self._slot_rewards[:] = 0.0
        self._running = {}
        if self.past:
            self.past.clear()
        self._finished, self.finished_steps = [], 0

    def _forget_trajectories(self, episodes: np.ndarray) -> None:
        """Forgets the trajectories that have ended in these episodes, which have not."""
        ended = [(columns, ~np.isin(columns[0], episodes)) for columns in self._ended_trajectories]
        kept = (tuple(column[over] for column in columns) for columns, over in ended)
        self._ended_trajectories = deque(kept, maxlen=_KEPT_POLLS)


def _grown(column: np.ndarray, size: int, fill: float) -> np.ndarray:
    """The column with this many entries at least, the new ones filled."""
    return np.append(column, np.full(max(size - len(column), 0), fill, column.dtype))
