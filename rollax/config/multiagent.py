"""The `multiagent` part of a trainer's config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, Field

from rollax.config.spelling import nearest
from rollax.errors import ConfigError
from rollax.frozen import FrozenModel


class SharedParts(FrozenModel):
    """Parts of their models that several policies share."""

    part = "multiagent"

    parts: tuple[str, ...] = Field(
        min_length=1, description="names of variables or modules of the model: 'policy_trunk' is all that is inside"
    )
    policies: tuple[str, ...] | None = Field(
        default=None, description="ids of the policies that share them; None for all of them"
    )


class MultiAgentConfig(FrozenModel):
    """Who acts for which agent. Empty: one policy, `default_policy`, for every agent."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    part = "multiagent"

    policies: dict[str, Any] = Field(
        default={},
        description="policy id -> None for the algorithm's own policy in the env's spaces, "
        "or (class or None, observation space, action space, config changes)",
    )
    policy_mapping_fn: Callable[..., str] | None = Field(
        default=None,
        description="(agent id) or (agent id, episode) -> policy id, asked once per agent and episode; "
        "not needed where there is only one policy",
    )
    policies_to_train: tuple[str, ...] | None = Field(
        default=None, description="ids of the policies that learn; None for all of them"
    )
    shared_variables: dict[str, SharedParts] = Field(
        default={},
        description="any name -> {'parts': names of variables or modules, 'policies': ids, all if left out}: whichever "
        "of the policies learns, all of them act with the same arrays",
    )

    def check(self) -> None:
        """Refuses entries that contradict each other."""
        if self.policy_mapping_fn is not None and not self.policies:
            raise ConfigError(
                "A policy mapping without policies.",
                where="config key 'multiagent.policies'",
                got=self.policies,
                expected="the policies that policy_mapping_fn names",
                fix='write "policies": {"some_id": None, ...}',
            )
        if self.policy_mapping_fn is None and len(self.policies) > 1:
            raise ConfigError(
                "Several policies, and nothing that says who uses which.",
                where="config key 'multiagent.policy_mapping_fn'",
                got=None,
                expected=f"a function from an agent id to one of {sorted(self.policies)}",
                fix='write "policy_mapping_fn": lambda agent_id: ...',
            )
        for policy_id in self.policies_to_train or ():
            known = tuple(self.policies) or ("default_policy",)
            if policy_id not in known:
                raise ConfigError(
                    "A policy to train that does not exist.",
                    where="config key 'multiagent.policies_to_train'",
                    got=policy_id,
                    expected=f"ids out of {sorted(known)}",
                    fix=nearest(policy_id, known),
                )
