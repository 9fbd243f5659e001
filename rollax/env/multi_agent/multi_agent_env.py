"""`MultiAgentEnv`: one environment, many agents, dicts by agent id."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import repeat
from typing import Any

import gymnasium as gym

from rollax.env import checks
from rollax.env.copies import env_name
from rollax.env.multi_agent.agent_groups import AgentGroups, Groups, check_groups, tuple_spaces
from rollax.env.multi_agent.agent_spaces import space_of, spaces_of_agents
from rollax.env.rows import ALL
from rollax.errors import MultiAgentError

AgentDict = dict[Hashable, Any]
_PARTS = ("obs", "rewards", "terminateds", "truncateds", "infos")


class MultiAgentEnv:
    """Abstract: only agents in the returned `obs` act next; agents appear, leave, return, and take turns.

    A reward for an agent that is not acting counts toward the agent's last step, until a flag ends the trajectory. An
    id that has ended and appears in `obs` again begins a new trajectory.
    """

    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    """Of every agent; None if agents differ, or the policies have their own."""
    observation_spaces: Mapping[Any, gym.Space] | None = None
    action_spaces: Mapping[Any, gym.Space] | None = None
    """By agent id, if agents differ; a policy without spaces takes those of the agents it acts for."""
    possible_agents: Sequence[Hashable] | None = None
    """Every id that may appear; None allows any."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(possible_agents={self.possible_agents})"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        """`(obs, infos)` by agent id."""
        raise NotImplementedError

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """`(obs, rewards, terminateds, truncateds, infos)` by agent id; both flag dicts carry `"__all__"`."""
        raise NotImplementedError

    def render(self) -> Any:
        """A frame, or None if it cannot be drawn."""
        return None

    def close(self) -> None:
        """Releases what the environment holds."""

    def with_agent_groups(
        self, groups: Groups, obs_space: gym.Space | None = None, act_space: gym.Space | None = None
    ) -> MultiAgentEnv:
        """This environment with each group of agents as one agent, beside the agents of no group.

        Observations and actions of a group are Tuples in the order of its members; its reward is the sum of theirs. A
        group acts when any member acts: the Tuple holds the latest observation of each living member and zeros for the
        others, and the actions of members that do not act are ignored. A group ends when its last living member ends:
        truncated if any member that ends in that step is only truncated.

        Args:
            groups: group id -> the ids of its members. Agents of no group must be among `possible_agents`.
            obs_space: a Tuple, the space of every group; None makes it from the spaces of the members.
            act_space: the same of actions.
        Raises:
            ConfigError: invalid groups.
            SpaceError: unknown spaces, or no Tuples of the right length.
        """
        return _Grouped(self, groups, obs_space, act_space)


class _Grouped(MultiAgentEnv):
    def __init__(
        self, env: MultiAgentEnv, groups: Groups, obs_space: gym.Space | None, act_space: gym.Space | None
    ) -> None:
        check_groups(groups, env.possible_agents)
        self.env, self.as_written = env, getattr(env, "as_written", env)
        members = {member for ids in groups.values() for member in ids}
        singles = [agent for agent in env.possible_agents or () if agent not in members]
        self.possible_agents = [*groups, *singles]

        def of_agents(kind: str) -> dict[Hashable, gym.Space]:
            return {a: s for a in (*members, *singles) if (s := space_of(env, kind, a)) is not None}

        obs_spaces, act_spaces = of_agents("observation_space"), of_agents("action_space")
        self.observation_spaces = tuple_spaces("obs_space", groups, obs_space, obs_spaces)
        self.action_spaces = tuple_spaces("act_space", groups, act_space, act_spaces)
        self._groups = AgentGroups(env_name(env), groups, self.observation_spaces)
        self.observation_spaces |= {agent: obs_spaces[agent] for agent in singles if agent in obs_spaces}
        self.action_spaces |= {agent: act_spaces[agent] for agent in singles if agent in act_spaces}
        self.observation_space = spaces_of_agents(self, "observation_space")[0]
        self.action_space = spaces_of_agents(self, "action_space")[0]

    def __repr__(self) -> str:
        return f"{self.env!r}.with_agent_groups(...)"

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[AgentDict, AgentDict]:
        result = self.env.reset(seed=seed, options=options)
        return self._groups.begin(*result) if are_dicts(result, 2) else result

    def step(self, actions: AgentDict) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        result = self.env.step(self._groups.part(actions))
        # A malformed result is passed on and refused like that of any environment.
        return self._groups.join(*result) if are_dicts(result, 5) else result

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def are_dicts(result: Any, count: int) -> bool:
    """Whether it is a tuple of `count` dicts."""
    return isinstance(result, tuple) and len(result) == count and all(map(isinstance, result, repeat(dict)))


def checked_step(result: Any, where: str) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
    """The dicts that `MultiAgentEnv.step` returned, checked.

    Raises:
        MultiAgentError: other values, or no agent can act in an episode that continues.
    """
    if not are_dicts(result, 5):
        checks.check_step(result, where)
        for name, part in zip(_PARTS, result, strict=True):
            if not isinstance(part, dict):
                raise MultiAgentError(
                    f"{name} that are no dict.",
                    where=where,
                    got=checks.outline(part),
                    expected="a dict by agent id",
                    fix="return {} where there is nothing to say",
                )
    obs, _, terminateds, truncateds, _ = result
    # This kind of environment only changes by actions: without an acting agent it would never continue.
    if not obs and terminateds.get(ALL) is False and truncateds.get(ALL) is False:
        raise MultiAgentError(
            f"Nobody can act: empty obs without {ALL!r}.",
            where=where,
            got={},
            expected=f"an observation of whoever acts next, or {ALL!r} True in a flag dict",
            fix=f"continue inside step() until an agent can act, or set {ALL!r} when the last agent has ended",
        )
    return result


def checked_reset(result: Any, where: str) -> tuple[AgentDict, AgentDict]:
    """The dicts that `MultiAgentEnv.reset` returned, checked.

    Raises:
        EnvError: other values.
    """
    obs, infos = checks.check_reset(result, f"{where}, reset()")
    if not isinstance(obs, dict):
        raise MultiAgentError(
            "obs that are no dict.",
            where=f"{where}, reset()",
            got=checks.outline(obs),
            expected="a dict by agent id",
            fix="return an observation for each agent that acts first, by its id",
        )
    return obs, infos
