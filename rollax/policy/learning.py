"""The compiled functions of a `JaxPolicy` that trace its loss or its distribution; equal policies share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from rollax.batch import Columns
from rollax.config import TrainerConfig
from rollax.core.overrides import names_of_bases
from rollax.models.distributions.base import ActionDistribution
from rollax.policy.gradient_steps import Devices, GradientSteps
from rollax.policy.loss_result import td_error_of

if TYPE_CHECKING:
    from rollax.policy.jax_policy import JaxPolicy


class Learning:
    """Gradient steps, and the temporal-difference errors of transitions."""

    def __init__(self, policy: JaxPolicy, devices: Devices) -> None:
        loss = policy._loss_of_arrays
        where = f"policy class {type(policy).__name__}, td_errors"

        def errors(params: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns) -> Any:
            return td_error_of(loss(params, params, extra, batch, mask, coefficients)[1][0], len(mask), where)

        self.steps = GradientSteps(
            loss,
            policy._optimizer,
            updated_targets=policy.plan.targets,
            stops=policy.plan.stops,
            count_rows=policy._count_rows,
            devices=devices,
        )
        self.errors = jax.jit(errors)

    def functions(self) -> Sequence[Any]:
        """The compiled functions whose versions `compilations` counts."""
        return *self.steps.functions(), self.errors


def learning_of(policy_class: type[JaxPolicy], constants: dict[str, Any], devices: Devices) -> Learning:
    """The functions of a policy made from its class and constants alone."""
    return Learning(policy_of(policy_class, constants), devices)


def logp_of(distribution: ActionDistribution) -> Any:
    """`(inputs, actions) -> log-probabilities`, compiled."""
    return jax.jit(lambda inputs, actions: distribution.logp(inputs, actions))


def constants_of(policy: Any) -> dict[str, Any]:
    """A policy's attributes except those in `per_policy` of its class and its bases.

    The config lacks the fields of all algorithms, apart from `gamma`, `model`, and `accept_off_policy_actions`, which
    decides what acting returns: the others are not constants of a loss, and many of them, such as `seed`, differ
    between policies of one kind.
    """
    own = names_of_bases(type(policy), "per_policy")
    constants = {name: value for name, value in vars(policy).items() if name not in own}
    return {**constants, "config": _cut(policy.config), "exploration": policy.exploration.traced}


def policy_of(policy_class: type, constants: dict[str, Any]) -> Any:
    """A policy with these attributes only; it holds no variables, and may be kept longer than the original policy.

    Reading another attribute raises AttributeError.
    """
    policy = object.__new__(policy_class)
    vars(policy).update(constants)
    return policy


# The other fields of all algorithms configure how a run samples, learns and reports.
_READ = frozenset({"accept_off_policy_actions", "gamma", "model"})


def _cut(config: TrainerConfig) -> TrainerConfig:
    cut = config.model_copy()
    for name in TrainerConfig.model_fields.keys() - _READ:
        del vars(cut)[name]
    return cut
