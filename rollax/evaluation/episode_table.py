"""The books of running episodes: rewards, lengths, numbers and seeds of every sub-environment, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollax.env.rows import Rows
from rollax.evaluation.episode import Episode
from rollax.evaluation.metrics import EpisodeMetrics


class EpisodeTable:
    """Counts what happens in each sub-environment's episode.

    Args:
        num_envs: how many sub-environments.
        seed: of the run; None leaves the environments unseeded.
        first_env: the number, across all workers, of the first sub-environment here.
        first_id: episode ids count up from here.
        on_start, on_step, on_end: called with an `Episode`; None where nobody listens.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        seed: int | None = None,
        first_env: int = 0,
        first_id: int = 0,
        on_start: Callable[[Episode], Any] | None = None,
        on_step: Callable[[Episode], Any] | None = None,
        on_end: Callable[[Episode], Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.rewards = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)
        self.ids = np.full(num_envs, -1, np.int64)
        self.begun = np.zeros(num_envs, np.int64)
        self.running: list[Episode] = [Episode(-1, index, self.rewards, self.lengths) for index in range(num_envs)]
        self.finished_steps = 0
        self._seed, self._first_env = seed, first_env
        self.next_id = first_id
        self._on_start, self._on_step, self._on_end = on_start, on_step, on_end
        self._lane_rewards = np.zeros(64)
        self._finished: list[int] = []
        self._metrics: list[EpisodeMetrics] = []

    def seeds(self) -> list[int] | None:
        """For the first reset of each sub-environment, from (seed, its number, the episodes it has begun)."""
        if self._seed is None:
            return None
        return [
            int(np.random.SeedSequence((self._seed, self._first_env + index, int(self.begun[index]))).generate_state(1)[0])
            for index in range(self.num_envs)
        ]

    def begin(self, env_index: np.ndarray) -> None:
        """Lives begin in these sub-environments; where no episode runs, one begins."""
        for index in dict.fromkeys(env_index.tolist()):
            if self.ids[index] < 0:
                self.ids[index] = self.next_id
                self.next_id += 1
                self.begun[index] += 1
                self.rewards[index], self.lengths[index] = 0.0, 0
                self.running[index] = Episode(int(self.ids[index]), index, self.rewards, self.lengths)
                if self._on_start:
                    self._on_start(self.running[index])

    def add_rewards(self, rows: Rows, outcomes: np.ndarray | None) -> int:
        """Adds a poll's rewards; returns the number of env steps that it was (`outcomes`: the rows, None for all)."""
        index = rows.env_index if outcomes is None else rows.env_index[outcomes]
        if not len(index):
            return 0
        lanes, rewards = (rows.lanes, rows.rewards) if outcomes is None else (rows.lanes[outcomes], rows.rewards[outcomes])
        top = int(lanes.max()) + 1
        if top > len(self._lane_rewards):
            self._lane_rewards = np.append(self._lane_rewards, np.zeros(top))
        self._lane_rewards[lanes] += rewards
        self.rewards += np.bincount(index, rewards, self.num_envs)
        stepped = np.zeros(self.num_envs, bool)
        stepped[index] = True
        self.lengths += stepped
        if self._on_step:
            infos = rows.info_list()
            for row in range(len(rows)):
                self.running[int(rows.env_index[row])].last_infos[rows.agent_of(row)] = infos[row]
            for env_index in np.flatnonzero(stepped).tolist():
                self._on_step(self.running[env_index])
        return int(np.count_nonzero(stepped))

    def end_lives(self, rows: Rows, ended: np.ndarray, policy_ids: Sequence[str], policies: np.ndarray | None) -> None:
        """Books the rewards of lives that have ended under the policy that lived them."""
        lanes = rows.lanes[ended]
        rewards = self._lane_rewards[lanes].tolist()
        self._lane_rewards[lanes] = 0.0
        numbers = [0] * len(rewards) if policies is None else policies.tolist()
        for index, number, reward in zip(rows.env_index[ended].tolist(), numbers, rewards, strict=True):
            self.running[index].policy_rewards.setdefault(policy_ids[number], []).append(reward)

    def end(self, env_index: np.ndarray) -> None:
        """The episodes of these sub-environments are over."""
        for index in env_index.tolist():
            episode = self.running[index]
            if self._on_end:
                self._on_end(episode)
            self._metrics.append(
                EpisodeMetrics(
                    episode.total_reward, episode.length, episode.policy_rewards, episode.custom_metrics, index
                )
            )
            self._finished.append(int(self.ids[index]))
            self.finished_steps += episode.length
            self.ids[index] = -1

    def take_finished(self) -> tuple[np.ndarray, int]:
        """The ids of the episodes finished since the last call, and their env steps."""
        finished, self._finished = np.array(self._finished, np.int64), []
        steps, self.finished_steps = self.finished_steps, 0
        return finished, steps

    def take_metrics(self) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call."""
        metrics, self._metrics = self._metrics, []
        return metrics

    def drop_running(self) -> None:
        """Forgets the running episodes."""
        self.ids[:] = -1
        self._lane_rewards[:] = 0.0
        self._finished, self.finished_steps = [], 0
