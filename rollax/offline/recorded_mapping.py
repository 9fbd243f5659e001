"""Which policy learns from, or is estimated by, recorded trajectories of an agent."""

from __future__ import annotations

from collections.abc import Hashable

from rollax.errors import PolicyError
from rollax.rollout.policy_mapping import PolicyMapping


def policy_of_recorded(policy_of: PolicyMapping, agent_id: Hashable, recorded: str) -> str:
    """The policy that learns from recorded trajectories of an agent; `recorded` is the policy that acted.

    It is the recorded one, if there is such a policy, where the mapping cannot tell: it reads the episode, which is not
    recorded, or it is random.
    """
    known = recorded in policy_of.policy_ids
    try:
        returned = policy_of.returned(agent_id)
    except PolicyError as error:
        if error.__cause__ is None or not known:
            raise
        return recorded
    return recorded if known and len(set(returned)) > 1 else returned[0]
