"""`PolicySpec`: one policy of a multi-agent run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gymnasium import Space

from rollax.errors import PolicyError
from rollax.policy.base_algorithm import BaseAlgorithm
from rollax.policy.policy import Policy

PolicyClass = type[Policy] | type[BaseAlgorithm]
"""A class with `make_policy`: a class of policies or of algorithms."""


class PolicySpec(NamedTuple):
    """Class, spaces and config of one policy of a multi-agent run.

    Args:
        policy_class: the class or algorithm of the policy; None for the algorithm of the trainer.
        observation_space: None for the environment's observation space.
        action_space: None for the environment's action space.
        config: the keys that differ for this policy, such as {"gamma": 0.85}.
    """

    policy_class: PolicyClass | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    config: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, spec: Any, policy_id: str) -> PolicySpec:
        """Returns the spec for an entry of the config: a spec, a class, None, or a tuple in the order of the fields.

        Raises PolicyError for any other entry.
        """
        if spec is None or _is_policy_class(spec):
            return cls(spec)
        if isinstance(spec, tuple) and 1 <= len(spec) <= 4 and (spec[0] is None or _is_policy_class(spec[0])):
            changes = spec[3] if len(spec) == 4 else None
            if changes is None or isinstance(changes, Mapping):
                return cls(*spec[:3], config=changes or {})
        fix = "write None for the algorithm's own policy in the environment's spaces"
        if isinstance(spec, Mapping):
            fix = f"write PolicySpec(config={{...}}) for a policy with other config keys, or {fix[6:]}"
        elif _is_policy_class(of_trainer := getattr(spec, "policy_class", None)):
            fix = f"name the policy of the trainer, {getattr(of_trainer, '__name__', '')}, or {fix}"
        raise PolicyError("This is not a policy spec.", f"multiagent.policies[{policy_id!r}]", spec).expected(
            "a Policy class, None, (class or None, observation_space, action_space, config), or a PolicySpec; "
            "the config is a dict of the keys that differ",
            fix,
        )


def _is_policy_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Policy | BaseAlgorithm)
