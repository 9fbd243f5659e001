"""Optimizers of the parameters of a `JaxPolicy`, without their learning rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import optax

from rollax.policy.update_plan import part_of


def adam(config: Any) -> optax.GradientTransformation:
    """Adam without learning rate, with the config's `adam_epsilon` if there is one."""
    # The first part has no state: in checkpoints, Adam's has the name of the second one.
    return optax.chain(optax.identity(), optax.scale_by_adam(eps=getattr(config, "adam_epsilon", 1e-8)))


def by_part(optimizers: Mapping[Hashable, optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimizer with a separate one for each part of the model, by attribute of the model."""
    return optax.partition(optimizers, lambda params: {name: part_of(name) for name in params})


def clipped(
    optimizer: optax.GradientTransformation, limit: float | None, *, each_part: bool
) -> optax.GradientTransformation:
    """The optimizer, for gradients whose norm is at most `limit`: that of each part of the model, or of all together.

    Its state is that of the optimizer, so that a restored run may change the limit.
    """
    if limit is None:
        return optimizer
    clip = optax.clip_by_global_norm(limit)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        parts: dict[str, dict[str, Any]] = {}
        for name, gradient in updates.items():
            parts.setdefault(part_of(name) if each_part else "", {})[name] = gradient
        bounded: dict[str, Any] = {}
        for part in parts.values():
            bounded.update(clip.update(part, optax.EmptyState())[0])  # type: ignore[arg-type]  a dict, as `part`
        return optimizer.update(bounded, state, params)

    return optax.GradientTransformation(optimizer.init, update)
