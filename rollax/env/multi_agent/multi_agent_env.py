"""`MultiAgentEnv`: one environment, many agents, dicts by agent id."""

from __future__ import annotations

import copy
from collections.abc import Container, Hashable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax.core import trees
from rollax.core.spaces import same_action_space, zeros
from rollax.env import agent_checks, checks
from rollax.env.adapters import adapted
from rollax.env.base_env import AgentDict, in_order
from rollax.env.checks import env_name
from rollax.env.dict_rows import flags_of, is_nothing
from rollax.env.rows import ALL
from rollax.errors import ConfigError, MultiAgentError, SpaceError

Groups = Mapping[Hashable, Sequence[Hashable]]
_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")


class MultiAgentEnv:
    """Abstract environment of several agents, in which only the agents in the returned `obs` act next.

    Agents may appear, leave, return and take turns. A reward for an agent that is not acting counts toward the agent's
    last step, until a flag ends the trajectory. An id that has ended and appears in `obs` again begins a new
    trajectory.
    """

    observation_space: Space | None = None
    action_space: Space | None = None
    """Spaces of every agent; None if agents differ, or the policies have their own."""
    observation_spaces: Mapping[Any, Space] | None = None
    action_spaces: Mapping[Any, Space] | None = None
    """Spaces by agent id, if agents differ; a policy without spaces gets its agents' spaces."""
    possible_agents: Sequence[Hashable] | None = None
    """Every id that may appear; None allows any."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(possible_agents={self.possible_agents})"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        """Begins an episode, and returns `(obs, infos)` by agent id."""
        raise NotImplementedError

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """Returns `(obs, rewards, terminateds, truncateds, infos)` by agent id; both flag dicts have `"__all__"`."""
        raise NotImplementedError

    def render(self) -> Any:
        """A frame, or None if it cannot be drawn."""
        return None

    def close(self) -> None:
        """Releases the resources of the environment."""

    def with_agent_groups(
        self, groups: Groups, obs_space: Space | None = None, act_space: Space | None = None
    ) -> MultiAgentEnv:
        """This environment with each group of agents as one agent; agents of no group stay as they are.

        Observations and actions of a group are Tuples in the order of its members; its reward sums their rewards. A
        group acts when any member acts: the Tuple holds the latest observation of each living member and zeros for the
        others, and the actions of members that do not act are ignored. A group ends when its last living member ends.
        The group is truncated if any member that ends in that step is truncated and not terminated; the last
        observation then holds zeros for terminated members.

        Args:
            groups: group id -> the ids of its members. Agents of no group must be among `possible_agents`.
            obs_space, act_space: Tuples, the spaces of every group; None makes them from the spaces of the members.
        Raises:
            ConfigError: invalid groups.
            SpaceError: unknown spaces, or spaces that are not Tuples of the right length.
        """
        return _Grouped(adapted(self), groups, obs_space, act_space)


class _Grouped(MultiAgentEnv):
    """Joins the results of the members of each group, and splits the groups' actions.

    A group exists from the first observation of a member until its last living member has ended. Contradictory values
    are passed on under the member's own id, and refused later.
    """

    def __init__(self, env: MultiAgentEnv, groups: Groups, obs_space: Space | None, act_space: Space | None) -> None:
        _check_groups(groups, env.possible_agents)
        self.env, self.as_written, self._name = env, getattr(env, "as_written", env), env_name(env)
        self._groups = {group: tuple(members) for group, members in groups.items()}
        self._members = frozenset(member for members in self._groups.values() for member in members)
        singles = [agent for agent in in_order(env.possible_agents or ()) if agent not in self._members]
        self.possible_agents = [*groups, *singles]
        tuples: dict[str, dict[Hashable, spaces.Tuple]] = {}
        for kind, name, given in (
            ("observation_space", "obs_space", obs_space),
            ("action_space", "act_space", act_space),
        ):
            of_agents = {a: s for a in (*self._members, *singles) if (s := space_of(env, kind, a)) is not None}
            tuples[kind] = _tuple_spaces(name, groups, given, of_agents)
            of_singles = {agent: of_agents[agent] for agent in singles if agent in of_agents}
            setattr(self, f"{kind}s", {**tuples[kind], **of_singles})
            setattr(self, kind, spaces_of_agents(self, kind)[0])
        self._zeros = {
            member: trees.index(zeros(space, 1), 0)
            for group, members in self._groups.items()
            for member, space in zip(members, tuples["observation_space"][group], strict=True)
        }
        self._alive: set[Hashable] = set()
        self._acting: set[Hashable] = set()
        self._last_obs: AgentDict = {}

    def __repr__(self) -> str:
        return f"{self.env!r}.with_agent_groups(...)"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        result = self.env.reset(seed=seed, options=options)
        if not are_dicts(result, 2):
            return result  # refused later, as in any environment
        self._alive, self._last_obs = set(), {}
        joined = self._joined(result[0], {}, {}, {}, result[1])
        return joined[0], joined[4]

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        split: AgentDict = {}
        for agent, action in actions.items():
            if agent in self._groups:
                pairs = zip(self._groups[agent], action, strict=True)
                split |= {member: part for member, part in pairs if member in self._acting}
            else:
                split[agent] = action
        result = self.env.step(split)
        return self._joined(*result) if are_dicts(result, 5) else result

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _joined(
        self, obs: AgentDict, rewards: AgentDict, terminateds: AgentDict, truncateds: AgentDict, infos: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """The results of a step, joined: Tuples of observations, sums of rewards, dicts of infos by member."""
        parts = (obs, rewards, terminateds, truncateds, infos)
        out_obs, out_rewards, out_terminateds, out_truncateds, out_infos = (
            {agent: value for agent, value in part.items() if agent not in self._members} for part in parts
        )
        out_rewards |= self._unearned(rewards, obs)
        for flags, out_flags in ((terminateds, out_terminateds), (truncateds, out_truncateds)):
            out_flags |= {m: flag for m, flag in flags.items() if type(flag) not in (bool, np.bool_)}
        self._acting = set()
        for group, members in self._groups.items():
            before = [member for member in members if member in self._alive]
            flags = {m: flags_of(m, terminateds, truncateds) for m in members if m in obs or m in self._alive}
            if any(member in rewards for member in before):
                out_rewards[group] = checks.sum_of_rewards([rewards[member] for member in before if member in rewards])
            if any(member in infos for member in members):
                out_infos[group] = {member: infos[member] for member in members if member in infos}
            # Copies, because an environment may reuse an array for the observation of another member.
            self._last_obs |= {member: copy.deepcopy(obs[member]) for member in flags if member in obs}
            self._alive.difference_update(before)
            self._alive.update(member for member, ended in flags.items() if not any(ended))
            acting = [member for member in members if member in obs and member in self._alive]
            if acting:
                out_obs[group] = self._tuple(members, self._alive)
                self._acting.update(acting)
            elif before and self._alive.isdisjoint(members):
                ends = {member: flags[member] for member in before}
                # If members are truncated and not terminated, the group is bootstrapped from their observations alone.
                cut = [member for member, (terminated, truncated) in ends.items() if truncated and not terminated]
                if any(member in obs for member in before):
                    out_obs[group] = self._tuple(members, cut or before)
                out_terminateds[group] = not cut
                out_truncateds[group] = any(truncated for _, truncated in ends.values())
        return out_obs, out_rewards, out_terminateds, out_truncateds, out_infos

    def _tuple(self, members: Sequence[Hashable], shown: Container[Hashable]) -> tuple:
        """One observation of a group: the latest of each member in `shown`, zeros for the others."""
        return tuple(self._last_obs[member] if member in shown else self._zeros[member] for member in members)

    def _unearned(self, rewards: AgentDict, obs: AgentDict) -> AgentDict:
        """The rewards of members that were not alive; a reward with a first observation is ignored and logged once."""
        members, name = self._members - self._alive, self._name
        unearned = {m: reward for m, reward in rewards.items() if m in members and not is_nothing(reward)}
        for member in [member for member in unearned if member in obs]:
            checks.warn_once(
                "first reward",
                name,
                f"{name}, agent {member!r}: a reward of {unearned.pop(member)} with the first observation of a "
                "trajectory belongs to no action and is not counted. Logged once.",
            )
        return unearned


def _check_groups(groups: Groups, possible_agents: Sequence[Hashable] | None) -> None:
    """Refuses groups without members or with the id of an agent, and agents that are unknown or in two groups."""
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
        raise ConfigError("The agent groups are invalid.", where, problem[0]).expected(*problem[1:])


def _tuple_spaces(
    kind: str, groups: Groups, given: Space | None, of_agents: Mapping[Hashable, Space]
) -> dict[Hashable, spaces.Tuple]:
    """Group id -> the Tuple of its members' spaces, or the space `given`; `kind` is "obs_space" or "act_space"."""
    found = {}
    for group, members in groups.items():
        where = f"with_agent_groups, group {group!r}"
        unknown = [member for member in members if member not in of_agents]
        if given is None and unknown:
            raise SpaceError(
                "The spaces of the agents of a group are not known.", where, f"no space of {unknown}"
            ).expected(
                "a space for each member", f"pass {kind} to with_agent_groups, or set the spaces of the env by agent"
            )
        space = spaces.Tuple([of_agents[member] for member in members]) if given is None else given
        if not isinstance(space, spaces.Tuple) or len(space) != len(members):
            raise SpaceError.is_not(
                f"The {kind} of a group", "a Tuple with a space for each member", where, space
            ).expected(
                f"a gymnasium.spaces.Tuple of {len(members)} spaces, for {list(members)}",
                f"correct {kind}, or leave it out if the environment has the spaces of its agents",
            )
        found[group] = space
    return found


def are_dicts(result: Any, count: int) -> bool:
    """Whether a result is a tuple of `count` dicts."""
    return isinstance(result, tuple) and len(result) == count and all(map(isinstance, result, repeat(dict)))


def checked_step(result: Any, where: str) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
    """The dicts that `MultiAgentEnv.step` returned; `EnvError` for other values, or if no agent can act."""
    if not are_dicts(result, 5):
        checks.check_step(result, where)
        for name, part in zip(_PARTS, result, strict=True):
            agent_checks.check_by_agent(name, part, where, dict)
    obs, _, terminateds, truncateds, _ = result
    # This kind of environment changes only by actions, so without an acting agent it would never continue.
    if not obs and terminateds.get(ALL) is False and truncateds.get(ALL) is False:
        raise MultiAgentError(f"No agent can act: obs is empty, and {ALL!r} is not True.", where, {}).expected(
            f"an observation of each agent that acts next, or {ALL!r} True in a flag dict",
            f"continue inside step() until an agent can act, or set {ALL!r} when the last agent has ended",
        )
    return result


def checked_reset(result: Any, where: str) -> tuple[AgentDict, AgentDict]:
    """The dicts that `MultiAgentEnv.reset` returned; `EnvError` for other values."""
    obs, infos = checks.check_reset(result, f"{where}, reset()")
    agent_checks.check_by_agent("obs", obs, f"{where}, reset()", dict)
    return obs, infos


def space_of(env: Any, kind: str, agent: Hashable) -> Space | None:
    """The "observation_space" or "action_space" of one agent: its own space, else the common space, else None."""
    return (getattr(env, f"{kind}s", None) or {}).get(agent, getattr(env, kind, None))


def spaces_of_agents(env: Any, kind: str) -> tuple[Space | None, Mapping[Hashable, Space] | None]:
    """`(the space that all agents have, the spaces by agent id)`; each is None if it is missing."""
    space, by_agent = getattr(env, kind, None), getattr(env, f"{kind}s", None)
    if space is None and by_agent and by_agent.keys() >= set(getattr(env, "possible_agents", None) or ()):
        space = common_space(by_agent)
    return space, by_agent


def common_space(spaces: Mapping[Any, Space]) -> Space | None:
    """The common space of all agents; None if the spaces differ, even if only in the order of their parts."""
    first, *others = spaces.values()
    return first if all(same_action_space(first, other) for other in others) else None
