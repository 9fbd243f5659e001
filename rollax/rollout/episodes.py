"""The table of running episodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.env.rows import NO_ENVS, Rows
from rollax.rollout.blocks import Outcomes, Segments
from rollax.rollout.metrics import EpisodeMetrics, FinishedEpisodes
from rollax.rollout.seeds import env_seed
from rollax.rollout.table import Index, Table

if TYPE_CHECKING:
    from rollax.rollout.episode import Episode


class EpisodeTable(Table):
    """One row per sub-environment.

    Columns:
        id: the id of the running episode; -1 if none is running.
        reward, length: the reward and the steps of the running episode so far.
        cut: the length of the running episode when the last fragment was cut.
        trains: false if the running episode is not trained on.
        whole: false if the beginning of the running episode was dropped; it then has neither callbacks nor metrics.
        begun: the number of episodes that have begun.
    Args:
        num_envs: number of sub-environments; the table grows if an environment uses larger numbers.
        seed: seed of the run; None for unseeded environments.
        first_env: the number of this worker's first sub-environment, counted over all workers.
        first_id: episode ids count up from here.
        first_episode: initial value of `begun`, on which seeds depend.
        on_start, on_step, on_end: called with an `Episode`; None if the callback is not overridden.
        only_policy: the policy of all agents, if there is only one.
        keeps_past: keep finished episodes in `past`.
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
        keeps_past: bool = False,
    ) -> None:
        super().__init__(num_envs, id=-1, reward=0.0, length=0, cut=0, trains=True, whole=True, begun=first_episode)
        self.num_envs = num_envs
        self.next_id = first_id
        self.finished_steps = 0
        self._all_train = True
        self._seed, self._first_env = seed, first_env
        self._on_start, self._on_step, self._on_end = on_start, on_step, on_end
        self._only_policy, self._keeps_past = only_policy, keeps_past
        self._running: dict[int, Episode] = {}  # by sub-environment, for running episodes that `episode` has returned
        self._ended = FinishedEpisodes()  # since the last `take_metrics`
        self._finished: list[np.ndarray] = []
        self.policies: Mapping[Hashable, str] = {}
        """Agent -> policy id, for agents whose policy is the same in all episodes; known before they appear."""
        self.past: dict[int, Episode] = {}
        """Episode id -> episode, for the episodes that finished since this dict was last cleared."""
        self.left: np.ndarray | None = None
        """How many more episodes of each sub-environment count, with callbacks and metrics; None: all count."""

    def episode(self, env_index: int) -> Episode:
        """The running episode of a sub-environment, for callbacks, mappings and policies."""
        episode = self._running.get(env_index)
        if episode is None:
            from rollax.rollout.episode import Episode  # loaded only where it is used

            episode = Episode(int(self["id"][env_index]), env_index, self, only_policy=self._only_policy)
            episode.policies.update(self.policies)
            self._running[env_index] = episode
        return episode

    def by_id(self, episode_id: int) -> Episode:
        """An episode that is running or in `past`."""
        if episode_id in self.past:
            return self.past[episode_id]
        return self.episode(int((self["id"] == episode_id).nonzero()[0][0]))

    def seeds(self) -> list[int] | None:
        """Seeds for the first reset of each sub-environment, from (seed, its number, the episodes it has begun)."""
        if self._seed is None:
            return None
        begun = self["begun"].tolist()
        return [env_seed(self._seed, self._first_env + index, begun[index]) for index in range(self.num_envs)]

    def begin(
        self,
        env_index: np.ndarray,
        trains: np.ndarray | None = None,
        resumed: np.ndarray = NO_ENVS,
        *,
        several_agents: bool = True,
    ) -> None:
        """Begins an episode in each of these sub-environments where none is running.

        Args:
            env_index: one entry per starting trajectory.
            trains: false if the episode is not trained on; None: all are.
            resumed: sub-environments whose episodes begin in the middle.
            several_agents: whether a sub-environment may occur more than once.
        """
        if trains is not None or not self._all_train:
            self["trains"][env_index] = True if trains is None else trains
            self._all_train = bool(self["trains"].all())
        new = env_index[self["id"][env_index] < 0]
        if several_agents:
            new = np.unique(new)
        self["id"][new] = np.arange(self.next_id, self.next_id + len(new))
        self.next_id += len(new)
        self["begun"][new] += 1
        self["reward"][new] = 0.0
        self["length"][new] = self["cut"][new] = 0
        self["whole"][resumed] = False
        if self._on_start:
            for index in new[self.counting(new)].tolist():
                self._on_start(self.episode(index))

    def add_rewards(self, rows: Rows, outcomes: np.ndarray | None = None) -> int:
        """Adds the rewards of a poll; returns the number of environment steps that are trained on.

        Args:
            rows: the polled rows.
            outcomes: the rows with an outcome; None for all.
        """
        if rows.agents is None and not self._on_step:  # one row for each stepped sub-environment
            index, _ = rows.places(outcomes)
            rewards = rows.rewards if outcomes is None else rows.rewards[outcomes]
            self["reward"][index] += rewards
            self["length"][index] += 1
            if self._on_end and len(rows.ended_envs):
                self._note_infos(rows, np.isin(rows.env_index, rows.ended_envs) & ~rows.starts)
            return len(rewards) if self._all_train else int(np.count_nonzero(self["trains"][index]))
        reward, length, running = self["reward"], self["length"], self["id"] >= 0
        index, rewards = rows.env_index, rows.rewards
        if outcomes is not None:
            index, rewards = index[outcomes], rewards[outcomes]
        reward += np.bincount(index, rewards, self.rows)
        # An agent that appears in a running episode shows that a step was taken, although it has no outcome itself.
        stepped = np.zeros(self.rows, bool)
        stepped[rows.env_index] = running[rows.env_index]
        if len(rows.ended_envs):  # possibly without a row, after the last agent's end
            stepped[rows.ended_envs] = running[rows.ended_envs]
        length += stepped
        if self._on_step or self._on_end:
            self._note_infos(rows, stepped[rows.env_index])
        if self._on_step:
            steps = stepped.nonzero()[0]
            for env_index in steps[self.counting(steps)].tolist():
                self._on_step(self.episode(env_index))
        return int(np.count_nonzero(stepped if self._all_train else stepped & self["trains"]))

    def _note_infos(self, rows: Rows, noted: np.ndarray) -> None:
        """Stores infos in `last_infos` of the episodes, for the rows in the mask `noted`."""
        chosen = noted.nonzero()[0]
        chosen = chosen[np.argsort(~rows.starts[chosen], kind="stable")]  # ends after starts: an end's info is kept
        for row, info in zip(chosen.tolist(), rows.infos_of(chosen), strict=True):
            self.episode(int(rows.env_index[row])).last_infos[rows.agent_of(row)] = info

    def end_trajectories(self, env_index: np.ndarray, policies: np.ndarray, rewards: np.ndarray) -> None:
        """Records [K] ended trajectories, each with its policy's number and its return."""
        self._ended.add_trajectories(self["id"][env_index], policies, rewards)

    def end(self, env_index: np.ndarray) -> None:
        """Ends the running episodes of these sub-environments."""
        env_index = env_index[self["id"][env_index] >= 0]  # an episode without agents is not counted
        ids, rewards, lengths = (self[name][env_index] for name in ("id", "reward", "length"))
        self._end_episodes(ids, env_index, rewards, lengths)
        trains = self["trains"][env_index]
        self["id"][env_index], self["whole"][env_index] = -1, True
        ids, lengths = ids[trains], lengths[trains]
        if len(ids):
            self._finished.append(ids)
            self.finished_steps += int(lengths.sum())

    def record_block(
        self, outcomes: Outcomes, segments: Segments, policies: np.ndarray, returns: np.ndarray
    ) -> np.ndarray:
        """Records a block; returns [S] the ids of the episodes. The agents of an episode begin and end together.

        Args:
            outcomes: what followed the actions of T polls.
            segments: the S segments of the block.
            policies: [A] the numbers of the agents' policies.
            returns: [S, A] the sums of the agents' rewards up to the ends of the segments.
        """
        envs, last = len(segments.first), segments.last
        begun, ended = segments.begun, segments.ended
        before = {name: self[name][:envs] for name in ("id", "reward", "length")}
        ids = np.empty(len(segments.start), np.int64)
        ids[segments.first] = before["id"]
        ids[begun] = np.arange(self.next_id, self.next_id + len(begun))
        rewards = returns[:, 0]
        if len(policies) > 1:
            rewards = segments.sums(outcomes.rewards.sum(axis=2, keepdims=True), before["reward"][:, None])[:, 0]
        lengths = segments.length.copy()
        lengths[segments.first] += before["length"]
        self.next_id += len(begun)
        self["begun"][:envs] += last - segments.first
        if len(ended):
            over, of_each = ids[ended], np.tile(policies, len(ended))
            self._ended.add_trajectories(over.repeat(len(policies)), of_each, returns[ended].ravel())
            self._end_episodes(over, segments.env_index[ended], rewards[ended], lengths[ended])
        self["id"][:envs] = np.where(np.isin(last, ended), -1, ids[last])
        self["reward"][:envs], self["length"][:envs] = rewards[last], lengths[last]
        return ids

    def _end_episodes(self, ids: np.ndarray, env_index: np.ndarray, rewards: np.ndarray, lengths: np.ndarray) -> None:
        """Calls callbacks for [K] ended episodes, and keeps the metrics of those that count."""
        counts = self.ending(env_index)
        custom_metrics: dict[int, dict[str, float]] = {}
        if self._on_end or self._keeps_past or self._running:
            columns = env_index, ids, rewards, lengths, counts
            for index, episode_id, reward, length, counted in zip(*(c.tolist() for c in columns), strict=True):
                self["id"][index], self["reward"][index], self["length"][index] = episode_id, reward, length
                if noted := self._end_episode(index, counted):
                    custom_metrics[episode_id] = noted
        self._ended.add(ids[counts], env_index[counts], rewards[counts], lengths[counts], custom_metrics)
        self._ended.drop_trajectories(ids[~counts])
        if self.left is not None:
            np.subtract.at(self.left, env_index[counts] % len(self.left), 1)

    def _end_episode(self, index: int, counted: bool) -> dict[str, float]:
        """Ends the `Episode` of a sub-environment, if there is one; returns its custom metrics."""
        if self._on_end and counted:
            self._on_end(self.episode(index))
        if self._keeps_past:
            episode = self.episode(index)
            self.past[episode.episode_id] = episode
            episode.detach()
        ended = self._running.pop(index, None)
        return {} if ended is None or not counted or not ended.custom_metrics else ended.noted_metrics()

    def counting(self, env_index: np.ndarray) -> np.ndarray:
        """[K] whether the running episodes of these sub-environments would count if they ended next."""
        whole = self["whole"][env_index]
        # An external environment has num_envs 1: all of its sub-environments share one entry of `left`.
        return whole if self.left is None else whole & (self.left[env_index % len(self.left)] > 0)

    def are_played(self) -> bool:
        """Whether all episodes of an evaluation have ended."""
        return self.left is not None and not np.count_nonzero(self.left)

    def ending(self, env_index: np.ndarray) -> np.ndarray:
        """[K] whether each episode counts, if they end in this order in one poll or block; see `counting`."""
        counts = self.counting(env_index)
        if self.left is None:
            return counts
        places = env_index[counts] % len(self.left)
        order = np.argsort(places, kind="stable")
        in_order = places[order]
        before = np.empty_like(order)  # the number of equal places before each one
        before[order] = np.arange(len(places)) - np.searchsorted(in_order, in_order)
        counts[counts] = self.left[places] > before
        return counts

    def ids_to_learn(self, env_index: Index) -> np.ndarray:
        """The ids of the running episodes of these sub-environments; -1 for episodes that are not trained on."""
        ids = self["id"][env_index]
        return ids if self._all_train else np.where(self["trains"][env_index], ids, -1)

    def steps_since_cut(self, env_index: np.ndarray) -> int:
        """The number of steps that are in no fragment yet, in the running episodes that are trained on.

        `env_index` selects the sub-environments.
        """
        counted = env_index[(self["id"][env_index] >= 0) & self["trains"][env_index]]
        return int((self["length"] - self["cut"])[counted].sum())

    def drop(self, env_index: np.ndarray) -> np.ndarray:
        """Drops the running episodes of these sub-environments; returns their ids."""
        ids = self["id"][env_index]
        ids = ids[ids >= 0]
        self._ended.drop_trajectories(ids)
        self["id"][env_index], self["whole"][env_index] = -1, True
        for index in env_index.tolist():
            self._running.pop(index, None)
        return ids

    def drop_running(self) -> None:
        """Drops all running episodes."""
        self.drop(np.arange(self.rows))
        self.past.clear()
        self._finished, self.finished_steps = [], 0

    def take_finished(self) -> tuple[np.ndarray, int]:
        """The ids of the episodes to train on that finished since the last call, and their environment steps."""
        finished = np.concatenate(self._finished) if self._finished else NO_ENVS
        steps, self.finished_steps, self._finished = self.finished_steps, 0, []
        return finished, steps

    def take_metrics(self, policy_ids: Sequence[str]) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call; `policy_ids` are indexed by the policy numbers."""
        return self._ended.take(policy_ids)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context of separate episodes, for example of an evaluation: in it, `take_metrics` returns only their metrics.

        Afterwards `take_metrics` returns the metrics of the earlier episodes. Running episodes are dropped on entry and
        on exit.
        """
        self.drop_running()
        earlier = self._ended
        try:
            self._ended = FinishedEpisodes()
            yield
        finally:
            self._ended = earlier
            self.drop_running()
