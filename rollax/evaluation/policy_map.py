"""Which policies a worker has, what config they share, and who acts for which agent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from gymnasium import Space

from rollax.config import TrainerConfig, resolve_config
from rollax.errors import ConfigError, PolicyError, SpaceError
from rollax.policy.policy import Policy
from rollax.policy.spec import PolicySpec
from rollax.spaces import same_space

DEFAULT_POLICY = "default_policy"


def specs_of(given: type[Policy] | Mapping[str, Any]) -> dict[str, PolicySpec]:
    """Policy id -> spec, from one policy class or a mapping of whatever a config may hold."""
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
    """A plain dict checked against the config class of the first policy that names one."""
    if isinstance(config, TrainerConfig):
        return config
    classes = [spec.policy_class or default for spec in specs.values()]
    known = (policy_class.config_class for policy_class in classes if policy_class is not None)
    config_class = next((found for found in known if found is not None), TrainerConfig)
    return resolve_config(config_class, config)


def space_of_agents(
    spaces: Mapping[Hashable, Space], policy_id: str, policy_of: Callable[..., str] | None, kind: str
) -> Space | None:
    """The space that all agents of a policy share; None where the environment names none of theirs.

    Args:
        spaces: agent id -> its space.
        policy_id: which policy.
        policy_of: `(agent_id, episode) -> policy id`; None where there is one policy.
        kind: what error messages call the space.
    Raises:
        PolicyError: the agents of the policy differ.
    """
    try:
        agents = [agent for agent in spaces if policy_of is None or policy_of(agent, None) == policy_id]
    except Exception:  # a mapping that asks the episode: who acts for whom is not known before one runs
        return None
    for agent in agents:
        if not same_space(spaces[agent], spaces[agents[0]]):
            raise PolicyError(
                f"Agents with different spaces for one policy: no {kind} fits all.",
                where=f"policy {policy_id!r}",
                got=f"{agents[0]!r}: {spaces[agents[0]]}, {agent!r}: {spaces[agent]}",
                expected="agents with equal spaces",
                fix="give them different policies in policy_mapping_fn",
            )
    return spaces[agents[0]] if agents else None


def nobody_uses(policy_id: str, agents: list[Hashable], policy_of: Callable[..., str] | None, kind: str) -> SpaceError:
    """The error of a policy whose space is that of its agents, where no agent is known to use it."""
    assert policy_of is not None  # without a mapping every agent uses the one policy
    try:
        mapped: Any = {agent: policy_of(agent, None) for agent in agents}
    except Exception:
        mapped = "not known before an episode runs: policy_mapping_fn reads it"
    return SpaceError(
        f"No agent is known to use this policy, so it has no {kind}.",
        where=f"policy {policy_id!r}, multiagent.policy_mapping_fn",
        got=mapped,
        expected=f"an agent that is mapped to {policy_id!r}",
        fix=f"return {policy_id!r} for an agent, or name the space: PolicySpec({kind}=...)",
    )


def policy_mapping(function: Callable[..., str] | None, policy_ids: list[str]) -> Callable[..., str] | None:
    """`(agent_id, episode) -> policy id`, whichever of the two the user's function takes."""
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
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature: a dict's __getitem__, say
        return lambda agent_id, episode: function(agent_id)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function
    second = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:2]
    # A second one with a default binds something of the user's own: lambda agent_id, table=TABLE: table[agent_id].
    if any(p.default is p.empty or p.name == "episode" for p in second):
        return function
    return lambda agent_id, episode: function(agent_id)
