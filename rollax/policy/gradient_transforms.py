"""Optimizers of the parameters of a model, without their learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.errors import PolicyError
from rollax.policy.update_plan import part_of


def adam(config: Any, *, b1: float = 0.9) -> optax.GradientTransformation:
    """Returns Adam without a learning rate, with the config's `adam_epsilon`."""
    # With `identity`, Adam is the second element of the chain, as the names in earlier checkpoints require.
    return optax.chain(optax.identity(), optax.scale_by_adam(b1, eps=config.adam_epsilon))


def by_part(
    optimizers: Mapping[str, optax.GradientTransformation], every: Mapping[str, int] = MappingProxyType({})
) -> optax.GradientTransformation:
    """Returns an optimizer with a separate optimizer for each part of the model, by name of the attribute.

    With `every` of an `UpdatePlan`, a part makes a step, and changes its optimizer state, at every k-th update only.
    """
    own: Any = {part: _every(every[part], one) if part in every else one for part, one in optimizers.items()}
    return optax.partition(own, lambda params: {name: part_of(name) for name in params})


def _every(interval: int, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    def is_due(step: Any, **_: Any) -> jax.Array:
        return jnp.asarray((step + 1) % interval == 0)

    return optax.conditionally_mask(optimizer, is_due)


def clipped(optimizer: Any, limit: float | None, *, each_part: bool) -> Any:
    """Returns the optimizer with gradients clipped to the norm `limit`, for each part of the model or for all together.

    The optimizer is one of Optax, or an object with the same methods, such as `optax.MultiSteps`.

    Clipping adds nothing to the optimizer's state, so that a restored run may change the limit.
    """
    if limit is None:
        return optimizer
    clip, inner = optax.clip_by_global_norm(limit), optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **others: Any) -> Any:
        parts: dict[str, dict[str, Any]] = {}
        for name, gradient in updates.items():
            parts.setdefault(part_of(name) if each_part else "", {})[name] = gradient
        bounded: dict[str, Any] = {}
        for part in parts.values():
            bounded.update(clip.update(part, optax.EmptyState())[0])  # type: ignore[arg-type]  a dict, as `part`
        return inner.update(bounded, state, params, **others)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def checked_optimizer(optimizer: Any, where: str) -> Any:
    """Returns the optimizer; raises PolicyError for an object that is not an Optax optimizer."""
    if callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None)):
        return optimizer
    raise PolicyError(
        "make_optimizer did not return an optimizer.",
        where=f"{where}, make_optimizer",
        got=type(optimizer).__name__,
        expected="an optax.GradientTransformation, or an object with its methods init and update",
        fix="return one without a learning rate, such as optax.scale_by_adam()",
    )
