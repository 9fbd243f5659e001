"""`with_projection`: projected gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from rollax.batch import Columns
from rollax.policy.update_plan import rate_of


def with_projection(
    optimizer: optax.GradientTransformation, projection: Callable[[Columns], Columns]
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer that projects the new parameters of another optimizer: projected gradient descent.

    Args:
        optimizer: an optimizer without a learning rate.
        projection: maps parameters by name to parameters that fulfil a constraint, such as a norm.
    """
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **others: Any) -> Any:
        lr = others["lr"]
        directions: Any
        directions, state = inner.update(updates, state, params, **others)
        own = {name: value for name, value in params.items() if not isinstance(value, optax.MaskedNode)}
        rates = {name: rate_of(lr, name) for name in own}
        after = projection({name: value - rates[name] * directions[name] for name, value in own.items()})
        steps = {
            name: jnp.where(rates[name] > 0, (value - after[name]) / jnp.where(rates[name] > 0, rates[name], 1.0), 0.0)
            for name, value in own.items()
        }
        return {**directions, **steps}, state

    return optax.GradientTransformationExtraArgs(inner.init, update)
