"""The constants of a policy, which compiled functions read, so that equal policies share the functions."""

from __future__ import annotations

from typing import Any

from rollax.config import TrainerConfig

# The other fields of all algorithms configure how a run samples, learns and reports.
_READ = frozenset({"accept_off_policy_actions", "gamma", "model"})


def constants_of(policy: Any) -> dict[str, Any]:
    """A policy's attributes except those in `per_policy` of its class and its bases.

    The config lacks the fields of all algorithms, apart from `gamma`, `model`, and `accept_off_policy_actions`, which
    decides what acting returns: the others are not constants of a loss, and many of them, such as `seed`, differ
    between policies of one kind.
    """
    own = frozenset[str]().union(*(vars(base).get("per_policy", ()) for base in type(policy).__mro__))
    constants = {name: value for name, value in vars(policy).items() if name not in own}
    return {**constants, "config": _cut(policy.config), "exploration": policy.exploration.traced}


def policy_of(policy_class: type, constants: dict[str, Any]) -> Any:
    """A policy with these attributes only; it holds no variables, and may be kept longer than the original policy.

    Reading another attribute raises AttributeError.
    """
    policy = object.__new__(policy_class)
    vars(policy).update(constants)
    return policy


def _cut(config: TrainerConfig) -> TrainerConfig:
    cut = config.model_copy()
    for name in TrainerConfig.model_fields.keys() - _READ:
        del vars(cut)[name]
    return cut
