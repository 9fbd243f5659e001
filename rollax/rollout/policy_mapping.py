"""The mapping from agents to policies: the config's `policy_mapping_fn`, checked; the spaces of a policy's agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from gymnasium import Space

from rollax.core.spaces import same_action_space, same_space
from rollax.errors import ConfigError, PolicyError, SpaceError

_REPEATED_CALLS = 100


def policy_mapping(function: Callable[..., str] | None, policy_ids: list[str]) -> PolicyMapping | None:
    """The user's function as a `PolicyMapping`; None for a single policy without a function.

    Raises:
        ConfigError: several policies have no function, or the function takes other arguments.
    """
    if function is not None:
        return PolicyMapping(function, policy_ids)
    if len(policy_ids) > 1:
        raise ConfigError("Several policies require a policy mapping.", "policy_mapping_fn", None).expected(
            f"a function from an agent id to one of {policy_ids}",
            "pass policy_mapping_fn, such as lambda agent_id: ...",
        )
    return None


class PolicyMapping:
    """`(agent_id, episode) -> policy id`; PolicyError if the user's function raises or returns an unknown policy.

    Attributes:
        policy_ids: the policies.
        takes_episode: whether the user's function has a parameter for the episode.
    """

    def __init__(self, function: Callable[..., str], policy_ids: list[str]) -> None:
        self._function, self.policy_ids = function, policy_ids
        self.takes_episode = _takes_episode(function)

    def __call__(self, agent_id: Hashable, episode: Any) -> str:
        try:
            policy_id = self._function(agent_id, episode) if self.takes_episode else self._function(agent_id)
        except Exception as error:
            raise PolicyError.raised(
                "The policy mapping", error, f"policy_mapping_fn, agent {agent_id!r}", f"one of {self.policy_ids}"
            ).fix("correct policy_mapping_fn") from error
        if isinstance(policy_id, str) and policy_id in self.policy_ids:
            return policy_id
        raise PolicyError(
            "The policy mapping names an unknown policy.", f"policy_mapping_fn, agent {agent_id!r}", policy_id
        ).expected(f"one of {self.policy_ids}", "correct policy_mapping_fn, or add the policy to multiagent.policies")

    def returned(self, agent_id: Hashable) -> list[str]:
        """The results of repeated calls without an episode: different policy ids if the function is random."""
        return [self(agent_id, None) for _ in range(_REPEATED_CALLS)]


def differs_between_episodes(policy_of: PolicyMapping, agents: Sequence[Hashable]) -> bool:
    """Whether a mapping takes the episode, or is random: repeated calls return different policies."""
    if policy_of.takes_episode:
        return True
    return any(len(set(policy_of.returned(agent))) > 1 for agent in agents)


def policies_of_agents(
    policy_of: Callable[..., str] | None, agents: Sequence[Hashable], policy_ids: Sequence[str]
) -> dict[Hashable, str]:
    """Agent -> policy id: the only policy, or the result of a mapping that does not read the episode."""
    if policy_of is None or len(policy_ids) == 1:
        return dict.fromkeys(agents, policy_ids[0])
    return {agent: policy_of(agent, None) for agent in agents}


def check_unchanged(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> None:
    """Raises PolicyError where a mapping returns another policy than before for an agent."""
    for agent, policy_id in before.items():
        if now[agent] != policy_id:
            what = "The policy mapping changed, but the environment is sampled in compiled calls."
            got = f"{now[agent]!r}, and {policy_id!r} before"
            raise PolicyError(what, f"policy_mapping_fn, agent {agent!r}", got).expected(
                "the same policy in every episode", "let it take (agent_id, episode): it is then called in each episode"
            )


def space_of_agents(
    spaces: Mapping[Hashable, Space],
    policy_id: str,
    policy_of: PolicyMapping | None,
    kind: str,
    declared: Iterable[Hashable] = (),
) -> Space | None:
    """The common space of all agents of a policy; None if `spaces` is empty.

    Args:
        spaces: agent id -> its space.
        policy_id: the policy.
        policy_of: `(agent_id, episode) -> policy id`; None for a single policy.
        kind: the name of the space in error messages.
        declared: the agents that the environment declares.
    Raises:
        PolicyError: the agents' spaces differ, or the mapping names an unknown policy.
        SpaceError: the environment has spaces for only some agents, or no agent is known to use the policy.
    """
    if not spaces:
        return None
    agents = [*dict.fromkeys((*spaces, *declared))]
    if policy_of is not None:
        mapped = _mapped(agents, policy_of)
        agents = [agent for agent in agents if mapped and mapped[agent] == policy_id]
        if not agents:
            raise SpaceError(
                f"No agent is known to use this policy, so it has no {kind}.",
                f"policy {policy_id!r}, multiagent.policy_mapping_fn",
                mapped or "not known before an episode runs: policy_mapping_fn reads it",
            ).expected(
                f"an agent that is mapped to {policy_id!r}",
                f"return {policy_id!r} for an agent, or set the space: PolicySpec({kind}=...)",
            )
    for agent in agents:
        if agent not in spaces:
            raise SpaceError(
                f"An agent has no {kind}.",
                f"the environment's {kind}s, agent {agent!r} of policy {policy_id!r}",
                f"spaces of {sorted(map(str, spaces))}",
            ).expected(
                "a space for every agent of the policy",
                f"add the agent to {kind}s, or set the spaces in multiagent.policies",
            )
        if not (same_action_space if kind == "action_space" else same_space)(spaces[agent], spaces[agents[0]]):
            raise PolicyError(
                f"The agents of one policy have different spaces, so no {kind} fits all.",
                f"policy {policy_id!r}",
                f"{agents[0]!r}: {spaces[agents[0]]}, {agent!r}: {spaces[agent]}",
            ).expected("agents with equal spaces", "map them to different policies in policy_mapping_fn")
    return spaces[agents[0]]


def _mapped(agents: Iterable[Hashable], policy_of: PolicyMapping) -> dict[Hashable, str] | None:
    """Agent -> its policy; None if the mapping reads the episode."""
    try:
        return {agent: policy_of(agent, None) for agent in agents}
    except PolicyError as error:
        if error.__cause__ is None or not policy_of.takes_episode:
            raise  # the error is not due to the missing episode
        return None


def _takes_episode(function: Callable[..., str]) -> bool:
    """Whether a policy mapping accepts the episode beside the agent id; ConfigError for other arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        if callable(function):
            return False  # a builtin without a signature, such as a dict's __getitem__
        raise _no_mapping(function, function) from error
    parameters = signature.parameters.values()
    second = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:2]
    # A second argument with a default is not the episode: lambda agent_id, table=TABLE: table[agent_id].
    takes_it = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_it = takes_it or any(p.default is p.empty or p.name == "episode" for p in second)
    try:
        signature.bind(*["agent", "episode"][: 2 if takes_it else 1])
    except TypeError as error:
        raise _no_mapping(function, f"{getattr(function, '__qualname__', function)}{signature}") from error
    return takes_it


def _no_mapping(function: Any, got: Any) -> ConfigError:
    expected = "a function of (agent_id) or (agent_id, episode)"
    return ConfigError(
        "The policy mapping takes the wrong arguments."
        if callable(function)
        else "The policy mapping is not a function.",
        "policy_mapping_fn",
        got,
    ).expected(expected, "let it take one of these two, and bind others: lambda agent_id: choose(agent_id, others)")
