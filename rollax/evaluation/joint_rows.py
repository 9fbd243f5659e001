"""What all agents observed and did at a row's step, as columns: the inputs of a centralized critic."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from gymnasium import Space, spaces

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import ConfigError, MultiAgentError
from rollax.spaces import same_space, zeros

ABSENT, SEEN_BEFORE, ACTS_NOW = 0, 1, 2
"""What `presence` says of another agent: nothing known; known from an earlier step; acts at this very step."""


class JointRows:
    """Joins the rows of all policies by episode and env step, with arrays alone: no loop over trajectories.

    Another agent stands in a row with its observation and action of the same env step, or else with its latest earlier
    ones, or else (it has not been seen in this fragment and episode) with zeros. The other agents follow in the order
    of `agents`, beginning after the row's own agent and going round.

    Args:
        agents: every agent that may ever appear.
        policy_spaces: policy id -> observation and action space. Where policies differ in them, each other agent has a
            part for each kind of policy, all zeros but the one that acts for it.
    """

    def __init__(self, agents: Sequence[Hashable], policy_spaces: Mapping[str, tuple[Space, Space]]) -> None:
        self._numbers = {agent: number for number, agent in enumerate(agents)}
        self._kinds: list[tuple[Space, Space]] = []
        self._kind_of = {policy_id: self._kind(*pair) for policy_id, pair in policy_spaces.items()}

    def space(self, observation_space: Space) -> spaces.Dict:
        """Of a joint row of an agent with this observation space; `other` is one of the other agents.

        Raises:
            ConfigError: fewer than two agents are declared.
        """
        if len(self._numbers) < 2:
            raise ConfigError(
                "A centralized critic without a list of the agents.",
                where="config key 'centralized_critic'",
                got=f"possible_agents: {list(self._numbers) or None}",
                expected="a multi-agent environment whose `possible_agents` names two or more",
                fix="set possible_agents in the environment, or leave centralized_critic out",
            )
        parts = [spaces.Dict({"obs": obs, "actions": actions}) for obs, actions in self._kinds]
        other = spaces.Dict({"presence": spaces.Discrete(3), "parts": spaces.Tuple(parts)})
        return spaces.Dict({"agent": spaces.Discrete(len(self._numbers)), "obs": observation_space, "other": other})

    def join(
        self, fragments: Mapping[str, Fragment], policy_ids: Sequence[str]
    ) -> dict[str, tuple[trees.Tree, trees.Tree]]:
        """Columns of joint rows for some of the policies: those of every row, and those after each segment's last row.

        What follows a segment is the agent's own next observation, and of the others what is known one env step after
        the segment's last row: their observation at that step or, where they have not acted again, the one that
        followed their latest action; and their action at that step or, where there is none, the latest.

        Args:
            fragments: policy id -> its rows; all policies, each with the columns `eps_id`, `agent_id` and `t`.
            policy_ids: whose rows to join.
        """
        table = self._table(fragments)
        joined = {}
        for policy_id in policy_ids:
            fragment, mine = fragments[policy_id], table.rows_of[policy_id]
            now = self._joint(table, np.arange(mine.start, mine.stop), fragment[SampleBatch.OBS], ahead=0)
            after = self._joint(table, mine.start + fragment.ends, fragment.after[SampleBatch.OBS], ahead=1)
            joined[policy_id] = now, after
        return joined

    def _kind(self, observation_space: Space, action_space: Space) -> int:
        for number, (obs, actions) in enumerate(self._kinds):
            if same_space(obs, observation_space) and same_space(actions, action_space):
                return number
        self._kinds.append((observation_space, action_space))
        return len(self._kinds) - 1

    def _table(self, fragments: Mapping[str, Fragment]) -> _Table:
        batches = list(fragments.values())
        lengths = [len(batch) for batch in batches]
        starts = np.cumsum([0, *lengths])
        agent = np.concatenate([self._agents_of(batch) for batch in batches])
        episode = np.unique(np.concatenate([batch[SampleBatch.EPS_ID] for batch in batches]), return_inverse=True)[1]
        t = np.concatenate([batch[SampleBatch.T] for batch in batches]).astype(np.int64)
        kind = np.repeat([self._kind_of[policy_id] for policy_id in fragments], lengths)
        place = np.zeros(len(t), np.int64)
        columns = []
        for number in range(len(self._kinds)):
            ids = [policy_id for policy_id in fragments if self._kind_of[policy_id] == number]
            columns.append(_Kind([fragments[policy_id] for policy_id in ids]) if ids else None)
            place[kind == number] = np.arange(np.count_nonzero(kind == number))
        rows_of = {p: slice(start, stop) for p, start, stop in zip(fragments, starts[:-1], starts[1:], strict=True)}
        return _Table(agent, episode, t, kind, place, columns, rows_of)

    def _agents_of(self, batch: SampleBatch) -> np.ndarray:
        try:
            return np.array([self._numbers[agent] for agent in batch[SampleBatch.AGENT_ID].tolist()], np.int64)
        except KeyError as error:
            raise MultiAgentError(
                "An agent that the environment has not declared.",
                where="the inputs of the centralized critic",
                got=error.args[0],
                expected=f"one of possible_agents: {sorted(map(str, self._numbers))}",
                fix="correct the agent's id, or add it to possible_agents",
            ) from None

    def _joint(self, table: _Table, rows: np.ndarray, own_obs: trees.Tree, ahead: int) -> trees.Tree:
        count = len(self._numbers)
        others = (table.agent[rows][:, None] + 1 + np.arange(count - 1)) % count
        found = table.latest(table.episode[rows][:, None], others, table.t[rows][:, None] + ahead)
        known = found >= 0
        acts = known & (table.t[found] >= table.t[rows][:, None])
        presence = np.where(acts, ACTS_NOW, np.where(known, SEEN_BEFORE, ABSENT))
        # One that has not acted at the step that is looked ahead to has observed something since its last action.
        since = known & (table.t[found] < table.t[rows][:, None] + ahead) if ahead else np.zeros_like(known)
        parts = []
        for number, (obs_space, action_space) in enumerate(self._kinds):
            of_kind = known & (table.kind[found] == number)
            columns = table.columns[number]
            if columns is None:
                parts.append(_nothing(obs_space, action_space, known.shape))
            else:
                parts.append(columns.take(table.place[found], of_kind, since))
        other = {"presence": presence, "parts": tuple(parts)}
        return {"agent": table.agent[rows], "obs": own_obs, "other": other}


def _nothing(observation_space: Space, action_space: Space, shape: tuple[int, int]) -> trees.Tree:
    rows = shape[0] * shape[1]
    columns = {"obs": zeros(observation_space, rows), "actions": zeros(action_space, rows)}
    return trees.tree_map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), columns)


class _Kind:
    """The observations and actions of all policies with the same spaces, one after another."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self.obs = trees.concat([fragment[SampleBatch.OBS] for fragment in fragments])
        self.actions = trees.concat([fragment[SampleBatch.ACTIONS] for fragment in fragments])
        self.next_obs = trees.concat([fragment.after[SampleBatch.OBS] for fragment in fragments])
        last = np.concatenate([fragment.last for fragment in fragments])
        self.segment_ended = np.where(last, np.cumsum(last) - 1, -1)

    def take(self, places: np.ndarray, known: np.ndarray, went_on: np.ndarray) -> trees.Tree:
        """Columns [N, K, ...] of the rows at `places`, zeros where they are not known.

        Args:
            places: [N, K] rows.
            known: [N, K] whether there is such a row.
            went_on: [N, K] whether it is the observation after the row that counts, as far as that is known.
        """
        rows, missing = np.where(known, places, 0).ravel(), ~known.ravel()
        obs, actions = trees.index(self.obs, rows), trees.index(self.actions, rows)
        later = np.flatnonzero((known & went_on).ravel() & (self.segment_ended[rows] >= 0))
        if len(later):
            trees.put(obs, later, trees.index(self.next_obs, self.segment_ended[rows[later]]))

        def shaped(leaf: np.ndarray) -> np.ndarray:
            leaf[missing] = 0
            return leaf.reshape(*places.shape, *leaf.shape[1:])

        return {"obs": trees.tree_map(shaped, obs), "actions": trees.tree_map(shaped, actions)}


class _Table:
    """Every row of a fragment, whoever's it is: policy after policy.

    Args:
        agent: [M] number of the agent; `episode`: [M] number of the episode; `t`: [M] env step.
        kind: [M] which kind of policy acted; `place`: [M] where in that kind's columns.
        columns: one for each kind; None where a kind has no rows.
        rows_of: policy id -> its rows.
    """

    def __init__(
        self,
        agent: np.ndarray,
        episode: np.ndarray,
        t: np.ndarray,
        kind: np.ndarray,
        place: np.ndarray,
        columns: Sequence[_Kind | None],
        rows_of: Mapping[str, slice],
    ) -> None:
        self.agent, self.episode, self.t, self.kind, self.place = agent, episode, t, kind, place
        self.columns, self.rows_of = columns, rows_of
        self._first, self._span = t.min(), t.max() - t.min() + 2  # one step may be looked ahead
        self._episodes = episode.max() + 1
        keys = self._keys(episode, agent, t)
        self._order = np.argsort(keys, kind="stable")
        self._keys_in_order = keys[self._order]

    def latest(self, episode: np.ndarray, agent: np.ndarray, t: np.ndarray) -> np.ndarray:
        """The last row of an agent in an episode at env step `t` or before; -1 where there is none."""
        keys = self._keys(episode, agent, t)
        position = np.searchsorted(self._keys_in_order, keys, side="right") - 1
        same = self._keys_in_order[position] // self._span == keys // self._span
        return np.where((position >= 0) & same, self._order[position], -1)

    def _keys(self, episode: np.ndarray, agent: np.ndarray, t: np.ndarray) -> np.ndarray:
        return (agent * self._episodes + episode) * self._span + (t - self._first)
