"""The policies of a worker, their common config, and the mapping from agents to policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from gymnasium import Space

from rollax.config import TrainerConfig, resolve_config
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.policy.policy import Policy, PolicySpec
from rollax.spaces import same_space

DEFAULT_POLICY = "default_policy"


def specs_of(given: type[Policy] | Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Policy id -> spec, from one policy class or the `policies` of a config."""
    if isinstance(given, Mapping):
        if not given:
            raise PolicyError(
                "No policy at all.",
                where="RolloutWorker(env_creator, policy_cls_or_specs)",
                got=given,
                expected="a policy class, or at least one policy id with its spec",
                fix="pass {'default_policy': MyPolicy}, or MyPolicy itself",
            )
        return {policy_id: PolicySpec.of(spec, policy_id) for policy_id, spec in given.items()}
    return {DEFAULT_POLICY: PolicySpec.of(given, DEFAULT_POLICY)}


def resolved_config(config: Any, specs: Mapping[str, PolicySpec], default: type[Policy] | None) -> TrainerConfig:
    """The config, validated by the config class of the first policy that names one."""
    if isinstance(config, TrainerConfig):
        return config
    classes = [spec.policy_class or default for spec in specs.values()]
    known = (policy_class.config_class for policy_class in classes if policy_class is not None)
    config_class = next((found for found in known if found is not None), TrainerConfig)
    return resolve_config(config_class, config)


def space_of_agents(
    spaces: Mapping[Hashable, Space],
    policy_id: str,
    policy_of: Callable[..., str] | None,
    kind: str,
    declared: Iterable[Hashable] = (),
) -> Space | None:
    """The space that all agents of a policy share; None where the environment does not state it.

    Args:
        spaces: agent id -> its space.
        policy_id: the policy.
        policy_of: `(agent_id, episode) -> policy id`; None where there is one policy.
        kind: the name of the space in error messages.
        declared: the agents that the environment declares.
    Raises:
        PolicyError: the agents' spaces differ, or the mapping names an unknown policy.
        SpaceError: the environment states spaces for some of them only.
    """
    agents = [*dict.fromkeys((*spaces, *declared))]
    if policy_of is not None:
        mapped = _mapped(agents, policy_of)
        if mapped is None:
            return None
        agents = [agent for agent in agents if mapped[agent] == policy_id]
    for agent in agents if spaces else ():
        if agent not in spaces:
            raise SpaceError(
                f"An agent without {kind}.",
                where=f"the environment's {kind}s, agent {agent!r} of policy {policy_id!r}",
                got=f"spaces of {sorted(map(str, spaces))}",
                expected="a space for every agent of possible_agents that the policy acts for",
                fix=f"add the agent to {kind}s, or give the policy its spaces in multiagent.policies",
            )
        if not same_space(spaces[agent], spaces[agents[0]]):
            raise PolicyError(
                f"Agents with different spaces for one policy: no {kind} fits all.",
                where=f"policy {policy_id!r}",
                got=f"{agents[0]!r}: {spaces[agents[0]]}, {agent!r}: {spaces[agent]}",
                expected="agents with equal spaces",
                fix="give them different policies in policy_mapping_fn",
            )
    return spaces[agents[0]] if agents and spaces else None


def nobody_uses(policy_id: str, agents: list[Hashable], policy_of: Callable[..., str] | None, kind: str) -> SpaceError:
    """The error of a policy without a space of its own that no agent is known to use."""
    assert policy_of is not None  # without a mapping every agent uses the one policy
    mapped = _mapped(agents, policy_of)
    return SpaceError(
        f"No agent is known to use this policy, so it has no {kind}.",
        where=f"policy {policy_id!r}, multiagent.policy_mapping_fn",
        got="not known before an episode runs: policy_mapping_fn reads it" if mapped is None else mapped,
        expected=f"an agent that is mapped to {policy_id!r}",
        fix=f"return {policy_id!r} for an agent, or name the space: PolicySpec({kind}=...)",
    )


def _mapped(agents: Iterable[Hashable], policy_of: Callable[..., str]) -> dict[Hashable, str] | None:
    """Agent -> its policy; None where the mapping reads the episode, and so needs one that runs.

    Raises:
        PolicyError: the mapping names an unknown policy.
    """
    try:
        return {agent: policy_of(agent, None) for agent in agents}
    except PolicyError as error:
        if error.__cause__ is None:
            raise  # about what the mapping returned, not what it raised
        return None


def policy_mapping(function: Callable[..., str] | None, policy_ids: list[str]) -> Callable[..., str] | None:
    """The user's function as `(agent_id, episode) -> policy id`; None where there is one policy and no function.

    The result raises a `PolicyError` where the user's function raises or names an unknown policy.

    Raises:
        ConfigError: there is no function for several policies, or it takes other arguments.
    """
    if function is None:
        if len(policy_ids) > 1:
            raise ConfigError(
                "Several policies without a mapping.",
                where="policy_mapping_fn",
                got=None,
                expected=f"a function from an agent id to one of {policy_ids}",
                fix="pass policy_mapping_fn",
            )
        return None
    takes_episode = _takes_episode(function)

    def policy_of(agent_id: Hashable, episode: Any) -> str:
        try:
            policy_id = function(agent_id, episode) if takes_episode else function(agent_id)
        except Exception as error:
            raise PolicyError(
                f"The policy mapping raised {type(error).__name__}: {error}",
                where=f"policy_mapping_fn, agent {agent_id!r}",
                got="the traceback above",
                expected=f"one of {policy_ids}",
                fix="correct policy_mapping_fn",
            ) from error
        if isinstance(policy_id, str) and policy_id in policy_ids:
            return policy_id
        raise PolicyError(
            "The policy mapping names an unknown policy.",
            where=f"policy_mapping_fn, agent {agent_id!r}",
            got=policy_id,
            expected=f"one of {policy_ids}",
            fix="correct policy_mapping_fn, or add the policy to multiagent.policies",
        )

    return policy_of


def _takes_episode(function: Callable[..., str]) -> bool:
    """Whether a policy mapping takes the episode beside the agent id.

    Raises:
        ConfigError: it takes neither one nor two arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        if callable(function):
            return False  # a builtin without a signature: a dict's __getitem__, say
        raise _no_mapping(function, function) from error
    parameters = signature.parameters.values()
    second = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:2]
    # A second one with a default is the user's: lambda agent_id, table=TABLE: table[agent_id].
    takes_it = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_it = takes_it or any(p.default is p.empty or p.name == "episode" for p in second)
    try:
        signature.bind(*["agent", "episode"][: 2 if takes_it else 1])
    except TypeError as error:
        raise _no_mapping(function, f"{getattr(function, '__qualname__', function)}{signature}") from error
    return takes_it


def _no_mapping(function: Any, got: Any) -> ConfigError:
    return ConfigError(
        "A policy mapping that takes other arguments."
        if callable(function)
        else "A policy mapping that is no function.",
        where="policy_mapping_fn",
        got=got,
        expected="a function of (agent_id) or (agent_id, episode)",
        fix="let it take one of these two, and bind the rest: lambda agent_id: choose(agent_id, mine)",
    )
