"""The policy of each agent, for a checkpoint that is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from rollax.algorithms.checkpoint import untrusted
from rollax.config.json_form import decode_config
from rollax.core.importing import StoredCode
from rollax.core.stored_values import wrong_value
from rollax.errors import ConfigError, InvalidRequestError
from rollax.rollout.policy_mapping import policy_mapping

PolicyMapping = Callable[..., str]
"""(agent id) or (agent id, episode) -> policy id."""


@dataclass(frozen=True, slots=True)
class ServedEpisode:
    """The episode that a server passes to a policy mapping of two arguments; no callback has put data into it."""

    episode_id: str
    user_data: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Read-only: data that a mapping writes would be lost at its next call, for another agent of the episode."""


def policy_mapping_of(
    stored: Mapping[str, Any],
    path: str | Path,
    given: PolicyMapping | Mapping[str, str] | None,
    *,
    trust_code: bool,
) -> tuple[PolicyMapping | None, bool]:
    """`(mapping, whether there are several agents)`; the mapping is (agent id, episode id) -> policy id.

    `given` replaces the checkpoint's mapping. The mapping is None for a single policy if nothing is given; any mapping
    means several agents.

    Raises:
        CheckpointError: several policies, no `given` mapping, and the checkpoint's mapping is code that is not trusted.
        ConfigError: several policies without a mapping, a dict with unknown policies, or a function of other arguments.
    """
    policy_ids = sorted(stored["policies"])
    config = decode_config(stored["config"], trust="everything" if trust_code else "nothing")
    multiagent = config.get("multiagent") or {}
    if not isinstance(multiagent, Mapping):
        raise wrong_value(f"{path}: config key 'multiagent'", multiagent, "a dict")
    several = bool(multiagent.get("policies"))
    if given is None and len(policy_ids) == 1:
        return None, several
    function: Any = given if given is not None else multiagent.get("policy_mapping_fn")
    if isinstance(function, StoredCode):
        raise untrusted(path, function, "pass policy_mapping (--policy-mapping), a dict from agent ids to policy ids")
    if isinstance(function, Mapping):
        # Agent ids of clients are strings.
        return _table({str(agent_id): policy_id for agent_id, policy_id in function.items()}, policy_ids), True
    checked = policy_mapping(function, policy_ids)
    assert checked is not None  # None only without a function and with one policy
    return (lambda agent_id, episode_id: checked(agent_id, ServedEpisode(episode_id))), True


def _table(table: dict[str, str], policy_ids: list[str]) -> PolicyMapping:
    unknown = sorted(set(table.values()) - set(policy_ids))
    if unknown:
        raise ConfigError("The policy mapping contains unknown policies.", "policy_mapping", unknown).expected(
            f"some of {policy_ids}", "correct the policy ids in policy_mapping"
        )

    def policy_of(agent_id: str, episode_id: str) -> str:
        if agent_id not in table:
            raise InvalidRequestError("The agent has no policy.", "agent id", agent_id).expected(
                f"one of {sorted(table)}", "correct the id, or start the server with a policy mapping that contains it"
            )
        return table[agent_id]

    return policy_of
