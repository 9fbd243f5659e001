"""The observations and actions of all agents at a row's step, as columns: the inputs of a centralized critic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from gymnasium import Space, spaces

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.spaces import same_space, zeros
from rollax.errors import ConfigError, MultiAgentError

ABSENT, SEEN_BEFORE, ACTS_NOW = 0, 1, 2
"""Values of `presence` of another agent. ABSENT: it has no row so far. SEEN_BEFORE: its latest row is from an earlier
step. ACTS_NOW: it acts at this step; in the columns after a segment, at the segment's last step or the next one."""


class JointRows:
    """Joins the rows of all policies by episode and env step, without a loop over trajectories.

    Each row has the observation and action of every other agent at the same env step. If an agent did not act then, its
    previous observation and action are used, or zeros if the fragments have no earlier row of the agent in the episode.
    The other agents are in the cyclic order of `agents`, starting after the row's own agent.

    Args:
        agents: all agents that may appear.
        policy_spaces: policy id -> observation and action space. Policies with equal spaces are one kind. Each other
            agent has one part per kind; only the part of its own policy's kind is not zeros.
    """

    def __init__(self, agents: Sequence[Hashable], policy_spaces: Mapping[str, tuple[Space, Space]]) -> None:
        self._numbers = {agent: number for number, agent in enumerate(agents)}
        self._kinds: list[tuple[Space, Space]] = []
        self._kind_of = {policy_id: self._kind(*pair) for policy_id, pair in policy_spaces.items()}

    def _kind(self, observation_space: Space, action_space: Space) -> int:
        for number, (obs, actions) in enumerate(self._kinds):
            if same_space(obs, observation_space) and same_space(actions, action_space):
                return number
        self._kinds.append((observation_space, action_space))
        return len(self._kinds) - 1

    def space(self, observation_space: Space) -> spaces.Dict:
        """The space of a row of `critic_obs`, for a policy with this observation space.

        `other` is the space of one other agent; columns of `other` are [N, K, ...], for K other agents.

        Raises:
            ConfigError: fewer than two agents are declared.
        """
        if len(self._numbers) < 2:
            got, expected = list(self._numbers) or None, "an environment whose `possible_agents` names two or more"
            raise ConfigError(
                "A centralized critic requires a list of the agents.", "config key 'centralized_critic'", got
            ).expected(expected, "set possible_agents, or leave centralized_critic out")
        parts = [spaces.Dict({"obs": obs, "actions": actions}) for obs, actions in self._kinds]
        other = spaces.Dict({"presence": spaces.Discrete(3), "parts": spaces.Tuple(parts)})
        return spaces.Dict({"agent": spaces.Discrete(len(self._numbers)), "obs": observation_space, "other": other})

    def join(
        self, fragments: Mapping[str, Fragment], policy_ids: Sequence[str]
    ) -> dict[str, tuple[trees.Tree, trees.Tree]]:
        """Policy id -> joint columns of its rows, and joint columns one step after each of its segments.

        The columns after a segment have the agent's own next observation. For every other agent, they have the
        observation and action of its row one env step after the segment's last row. If there is no such row, they have
        the action of its latest row, and the observation of that row, or the observation after it if the row ends a
        segment.

        Args:
            fragments: policy id -> its rows; all policies, each with the columns `eps_id`, `agent_id` and `t`.
            policy_ids: the policies whose rows are joined.
        Raises:
            MultiAgentError: an agent is not in `agents`.
        """
        table = self._table(fragments)
        starts = dict(zip(fragments, np.cumsum([0, *map(len, fragments.values())]).tolist(), strict=False))
        joined = {}
        for policy_id in policy_ids:
            fragment, start = fragments[policy_id], starts[policy_id]
            now = self._joint(table, start + np.arange(len(fragment)), fragment[SampleBatch.OBS], ahead=0)
            after = self._joint(table, start + fragment.ends, fragment.after[SampleBatch.OBS], ahead=1)
            joined[policy_id] = now, after
        return joined

    def _table(self, fragments: Mapping[str, Fragment]) -> _Table:
        agent = np.concatenate([self._agents_of(fragment) for fragment in fragments.values()])
        kinds = [self._kind_of[policy_id] for policy_id in fragments]
        columns = []
        for number, (obs_space, action_space) in enumerate(self._kinds):
            of_kind = [fragment for fragment, kind in zip(fragments.values(), kinds, strict=True) if kind == number]
            columns.append(_Columns(of_kind) if of_kind else _Columns.of_zeros(obs_space, action_space))
        return _Table(list(fragments.values()), agent, kinds, columns)

    def _agents_of(self, batch: SampleBatch) -> np.ndarray:
        try:
            return np.array([self._numbers[agent] for agent in batch[SampleBatch.AGENT_ID].tolist()], np.int64)
        except KeyError as error:
            raise MultiAgentError(
                "An agent is not declared by the environment.", "the inputs of the centralized critic", error.args[0]
            ).expected(
                f"one of possible_agents: {sorted(map(str, self._numbers))}", "correct the agent's id, or add it there"
            ) from None

    def _joint(self, table: _Table, rows: np.ndarray, own_obs: trees.Tree, ahead: int) -> trees.Tree:
        count = len(self._numbers)
        others = (table.agent[rows][:, None] + 1 + np.arange(count - 1)) % count
        found = table.latest(table.episode[rows][:, None], others, table.t[rows][:, None] + ahead)
        known = found >= 0
        acts = known & (table.t[found] >= table.t[rows][:, None])
        presence = np.where(acts, ACTS_NOW, np.where(known, SEEN_BEFORE, ABSENT))
        # Agents without a row at the next step: `take` uses the observation after their last row if it ends a segment.
        since = known & (table.t[found] < table.t[rows][:, None] + ahead) if ahead else np.zeros_like(known)
        parts = [
            columns.take(table.place[found], known & (table.kind[found] == kind), since)
            for kind, columns in enumerate(table.columns)
        ]
        other = {"presence": presence, "parts": tuple(parts)}
        return {"agent": table.agent[rows], "obs": own_obs, "other": other}


class _Columns:
    """The observations and actions of all policies with the same spaces, one after another."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.obs = trees.concat([fragment[SampleBatch.OBS] for fragment in fragments])
        self.actions = trees.concat([fragment[SampleBatch.ACTIONS] for fragment in fragments])
        self.next_obs = trees.concat([fragment.after[SampleBatch.OBS] for fragment in fragments])
        last = np.concatenate([fragment.last for fragment in fragments])
        self.segment_ended = np.where(last, np.cumsum(last) - 1, -1)

    @classmethod
    def of_zeros(cls, observation_space: Space, action_space: Space) -> _Columns:
        """One row of zeros, for a kind of policies without rows."""
        obs = zeros(observation_space, 1)
        columns = {SampleBatch.OBS: obs, SampleBatch.ACTIONS: zeros(action_space, 1)}
        return cls([Fragment(columns, [0], {SampleBatch.OBS: obs})])

    def take(self, places: np.ndarray, known: np.ndarray, continued: np.ndarray) -> trees.Tree:
        """Columns [N, K, ...] of the rows at `places` [N, K].

        A column is zero where `known` is false. It has the next observation where `continued` is true and the row is
        the last of its segment.
        """
        rows, missing = np.where(known, places, 0).ravel(), ~known.ravel()
        obs, actions = trees.index(self.obs, rows), trees.index(self.actions, rows)
        later = np.flatnonzero((known & continued).ravel() & (self.segment_ended[rows] >= 0))
        if len(later):
            trees.put(obs, later, trees.index(self.next_obs, self.segment_ended[rows[later]]))

        def shaped(leaf: np.ndarray) -> np.ndarray:
            leaf[missing] = 0
            return leaf.reshape(*places.shape, *leaf.shape[1:])

        return {"obs": trees.tree_map(shaped, obs), "actions": trees.tree_map(shaped, actions)}


class _Table:
    """All rows of some fragments, one fragment after another; `place` is a row's position in its kind's columns."""

    def __init__(
        self, fragments: Sequence[Fragment], agent: np.ndarray, kinds: Sequence[int], columns: Sequence[_Columns]
    ) -> None:
        self.agent, self.columns = agent, columns
        ids = np.concatenate([fragment[SampleBatch.EPS_ID] for fragment in fragments])
        self.episode = np.unique(ids, return_inverse=True)[1]
        self.t = np.concatenate([fragment[SampleBatch.T] for fragment in fragments]).astype(np.int64)
        self.kind = np.repeat(kinds, [len(fragment) for fragment in fragments])
        self.place = np.zeros(len(agent), np.int64)
        for kind in set(kinds):
            mine = np.flatnonzero(self.kind == kind)
            self.place[mine] = np.arange(len(mine))
        self._first, self._span = self.t.min(), self.t.max() - self.t.min() + 2  # lookups are at most one step ahead
        self._episodes = self.episode.max() + 1
        keys = self._keys(self.episode, agent, self.t)
        self._order = np.argsort(keys, kind="stable")
        self._keys_in_order = keys[self._order]

    def latest(self, episode: np.ndarray, agent: np.ndarray, t: np.ndarray) -> np.ndarray:
        """The last row of an agent in an episode at or before env step `t`; -1 if there is none."""
        keys = self._keys(episode, agent, t)
        position = np.searchsorted(self._keys_in_order, keys, side="right") - 1
        same = self._keys_in_order[position] // self._span == keys // self._span
        return np.where((position >= 0) & same, self._order[position], -1)

    def _keys(self, episode: np.ndarray, agent: np.ndarray, t: np.ndarray) -> np.ndarray:
        return (agent * self._episodes + episode) * self._span + (t - self._first)
