"""Groups of agents that act as one: dicts of members are joined, actions of groups are split."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax import trees
from rollax.env import checks
from rollax.env.dict_rows import flags_of, is_nothing
from rollax.errors import ConfigError, SpaceError
from rollax.spaces import zeros

AgentDict = dict[Hashable, Any]
Groups = Mapping[Hashable, Sequence[Hashable]]


class AgentGroups:
    """Joins the observations, rewards, flags and infos of the members of each group, and keeps who is alive.

    A group exists from the first observation of a member until its last living member has ended. It acts when any
    member acts. Contradictions are passed on under the member's own id, and refused there.

    Args:
        name: of the environment, in warnings.
        groups: group id -> the ids of its members, in the order of the Tuples.
        observation_spaces: group id -> a Tuple of its members' observation spaces.
    """

    def __init__(self, name: str, groups: Groups, observation_spaces: Mapping[Hashable, spaces.Tuple]) -> None:
        self.name = name
        self.groups = {group: tuple(members) for group, members in groups.items()}
        self.members = frozenset(member for members in self.groups.values() for member in members)
        self._zeros = {
            member: trees.index(zeros(space, 1), 0)
            for group, members in self.groups.items()
            for member, space in zip(members, observation_spaces[group], strict=True)
        }
        self._alive: set[Hashable] = set()
        self._acting: set[Hashable] = set()
        self._last_obs: AgentDict = {}

    def begin(self, obs: AgentDict, infos: AgentDict) -> tuple[AgentDict, AgentDict]:
        """The results of a reset, joined."""
        self._alive, self._last_obs = set(), {}
        joined = self.join(obs, {}, {}, {}, infos)
        return joined[0], joined[4]

    def join(
        self, obs: AgentDict, rewards: AgentDict, terminateds: AgentDict, truncateds: AgentDict, infos: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """The results of a step, joined: Tuples of observations, sums of rewards, dicts of infos by member."""
        parts = (obs, rewards, terminateds, truncateds, infos)
        out_obs, out_rewards, out_terminateds, out_truncateds, out_infos = map(self._of_others, parts)
        out_rewards |= self._unearned(rewards, obs)
        for flags, out_flags in ((terminateds, out_terminateds), (truncateds, out_truncateds)):
            out_flags |= {m: flag for m, flag in flags.items() if type(flag) not in (bool, np.bool_)}
        self._acting = set()
        for group, members in self.groups.items():
            before = [member for member in members if member in self._alive]
            flags = {m: flags_of(m, terminateds, truncateds) for m in members if m in obs or m in self._alive}
            if any(member in rewards for member in before):
                out_rewards[group] = _sum([rewards[member] for member in before if member in rewards])
            if any(member in infos for member in members):
                out_infos[group] = {member: infos[member] for member in members if member in infos}
            self._last_obs |= {member: obs[member] for member in flags if member in obs}
            self._alive.difference_update(before)
            self._alive.update(member for member, ended in flags.items() if not any(ended))
            acting = [member for member in members if member in obs and member in self._alive]
            if acting:
                out_obs[group] = self._tuple(members, self._alive)
                self._acting.update(acting)
            elif before and self._alive.isdisjoint(members):
                if any(member in obs for member in before):
                    out_obs[group] = self._tuple(members, before)
                ends = [flags[member] for member in before]
                # A group is bootstrapped if any member is.
                cut = any(truncated and not terminated for terminated, truncated in ends)
                out_terminateds[group], out_truncateds[group] = not cut, any(truncated for _, truncated in ends)
        return out_obs, out_rewards, out_terminateds, out_truncateds, out_infos

    def part(self, actions: AgentDict) -> AgentDict:
        """The actions of groups split into those of their acting members; other agents' actions unchanged."""
        parted: AgentDict = {}
        for agent, action in actions.items():
            if agent in self.groups:
                pairs = zip(self.groups[agent], action, strict=True)
                parted |= {member: part for member, part in pairs if member in self._acting}
            else:
                parted[agent] = action
        return parted

    def _of_others(self, part: AgentDict) -> AgentDict:
        return {agent: value for agent, value in part.items() if agent not in self.members}

    def _tuple(self, members: Sequence[Hashable], shown: Container[Hashable]) -> tuple:
        """One observation of a group: the latest of each member that is shown, zeros for the others."""
        return tuple(self._last_obs[member] if member in shown else self._zeros[member] for member in members)

    def _unearned(self, rewards: AgentDict, obs: AgentDict) -> AgentDict:
        """The rewards of members that were not alive; one beside a first observation is ignored and logged once."""
        members = self.members - self._alive
        unearned = {m: reward for m, reward in rewards.items() if m in members and not is_nothing(reward)}
        for member in [member for member in unearned if member in obs]:
            checks.say_once(
                "first reward",
                self.name,
                f"{self.name}, agent {member!r}: a reward of {unearned.pop(member)} beside the first observation of a "
                "trajectory follows from no action of it and counts nowhere. Said once.",
            )
        return unearned


def _sum(rewards: list[Any]) -> Any:
    """The sum, or the first that is no number, which is then refused like any agent's."""
    for reward in rewards:
        if isinstance(reward, str) or np.ndim(reward) or reward is None:
            return reward
    return sum(rewards)


def check_groups(groups: Groups, possible_agents: Sequence[Hashable] | None) -> None:
    """Refuses invalid groups.

    Raises:
        ConfigError: a group without members, an agent in two groups or unknown, an agent's id as a group's.
    """
    agents, members = set(possible_agents or ()), [member for group in groups.values() for member in group]
    for group, ids in groups.items():
        strange = [member for member in ids if agents and member not in agents]
        again = [member for member in ids if members.count(member) > 1]
        if not ids:
            problem = "no members", "at least one agent", "leave the group out"
        elif strange:
            problem = strange[0], f"some of possible_agents: {list(possible_agents or ())}", "correct the agent's id"
        elif again:
            problem = f"{again[0]!r}, more than once", "every agent in one place of one group", "remove it"
        elif group in agents or group in members:
            problem = "an agent of that id", "an id of its own", "rename the group"
        else:
            continue
        where = f"with_agent_groups, group {group!r}"
        raise ConfigError(
            "Agent groups that cannot be.", where=where, got=problem[0], expected=problem[1], fix=problem[2]
        )


def tuple_spaces(
    kind: str, groups: Groups, given: Space | None, of_agents: Mapping[Hashable, Space]
) -> dict[Hashable, spaces.Tuple]:
    """Group id -> the Tuple of its members' spaces.

    Args:
        kind: "obs_space" or "act_space".
        groups: group id -> its members.
        given: the space of every group, or None.
        of_agents: agent id -> space, of the agents with known spaces.
    Raises:
        SpaceError: a member's space is unknown, or `given` is no Tuple of the right length.
    """
    found = {}
    for group, members in groups.items():
        where = f"with_agent_groups, group {group!r}"
        unknown = [member for member in members if member not in of_agents]
        if given is None and unknown:
            raise SpaceError(
                "A group of agents whose spaces are not known.",
                where=where,
                got=f"no space of {unknown}",
                expected="a space for each member",
                fix=f"pass {kind}, or give the environment's class the spaces of its agents",
            )
        space = spaces.Tuple([of_agents[member] for member in members]) if given is None else given
        if not isinstance(space, spaces.Tuple) or len(space) != len(members):
            raise SpaceError(
                f"A group's {kind} that is no Tuple with a space for each member.",
                where=where,
                got=space,
                expected=f"a gymnasium.spaces.Tuple of {len(members)} spaces, for {list(members)}",
                fix=f"correct {kind}, or leave it out where the environment names its agents' spaces",
            )
        found[group] = space
    return found
