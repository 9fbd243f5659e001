"""Which policy learns from, or is estimated by, recorded trajectories of an agent."""

from __future__ import annotations

from collections.abc import Hashable

from rollax.errors import PolicyError
from rollax.rollout.policy_mapping import PolicyMapping


def policy_of_recorded(policy_of: PolicyMapping, agent_id: Hashable, recorded: str) -> str:
    """The policy that learns from recorded trajectories of an agent; `recorded` is the policy that acted.

    If the mapping reads the episode, which is not recorded, or is random, the policy that acted learns, if it exists in
    this run.
    """
    known = recorded in policy_of.policy_ids
    try:
        returned = policy_of.returned(agent_id)
    except PolicyError as error:
        if error.__cause__ is None or not known:
            raise
        return recorded
    return recorded if known and len(set(returned)) > 1 else returned[0]
