"""The `multiagent` part of a trainer's config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from rollax.batch import DEFAULT_POLICY
from rollax.core.frozen import FrozenModel
from rollax.errors import ConfigError


class SharedParts(FrozenModel):
    """Parts of the model that several policies share."""

    part = "multiagent"

    parts: tuple[str, ...] = Field(
        min_length=1, description="names of variables or modules of the model; a module stands for all of its variables"
    )
    policies: tuple[str, ...] | None = Field(
        default=None, description="ids of the policies that share them; None: all policies"
    )


class MultiAgentConfig(FrozenModel):
    """The policies and the agents that they act for. Empty: one policy, `default_policy`, for all agents."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    part = "multiagent"

    policies: dict[str, Any] = Field(
        default={},
        description="policy id -> None for the algorithm's policy in the environment's spaces, or a PolicySpec: "
        "(class or None, observation space, action space, config changes); a list of ids: None for each",
    )
    policy_mapping_fn: Callable[..., str] | None = Field(
        default=None,
        description="a function of (agent id) or (agent id, episode) that returns a policy id, called once per agent "
        "and episode (in compiled sampling: per agent and compiled call); optional with one policy",
    )
    policies_to_train: tuple[str, ...] | None = Field(
        default=None, description="ids of the policies that learn; None: all policies"
    )
    shared_variables: dict[str, SharedParts] = Field(
        default={},
        description="any name -> {'parts': names of variables or modules, 'policies': ids, by default all}; these "
        "policies share these arrays, and an update of one policy changes them for all",
    )

    @field_validator("policies", mode="before")
    @classmethod
    def _ids_alone(cls, policies: Any) -> Any:
        if isinstance(policies, set | frozenset):  # another order in each process
            return dict.fromkeys(sorted(policies, key=str))
        are_ids = isinstance(policies, list | tuple) and all(isinstance(policy_id, str) for policy_id in policies)
        return dict.fromkeys(policies) if are_ids else policies

    def check(self) -> None:
        if self.policy_mapping_fn is not None and not self.policies:
            raise ConfigError(
                "A policy mapping is given, but no policies.", "config key 'multiagent.policies'", self.policies
            ).expected("the policies that policy_mapping_fn names", 'write "policies": {"some_id": None, ...}')
        if self.policy_mapping_fn is None and len(self.policies) > 1:
            expected = f"a function from an agent id to one of {sorted(self.policies)}"
            raise ConfigError(
                "Several policies require a policy mapping.", "config key 'multiagent.policy_mapping_fn'", None
            ).expected(expected, 'add "policy_mapping_fn": lambda agent_id: ...')
        for policy_id in self.policies_to_train or ():
            known = tuple(self.policies) or (DEFAULT_POLICY,)
            if policy_id not in known:
                raise ConfigError.unknown(
                    "policy to train", policy_id, known, "config key 'multiagent.policies_to_train'"
                )
