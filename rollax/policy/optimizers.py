"""Optimizers of the parameters of a model, without their learning rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.errors import PolicyError
from rollax.policy.update_plan import part_of

_FIRST_STEPS = 8  # the first ones may be 0: a warm-up, or gradients that are accumulated


def adam(config: Any) -> optax.GradientTransformation:
    """Adam without learning rate, with the config's `adam_epsilon`."""
    # The first part has no state: in checkpoints, Adam's has the name of the second one.
    return optax.chain(optax.identity(), optax.scale_by_adam(eps=config.adam_epsilon))


def by_part(optimizers: Mapping[Hashable, optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimizer with a separate one for each part of the model, by attribute of the model."""
    return optax.partition(optimizers, lambda params: {name: part_of(name) for name in params})


def clipped(
    optimizer: optax.GradientTransformation, limit: float | None, *, each_part: bool
) -> optax.GradientTransformation:
    """The optimizer with gradients clipped to the norm `limit`: the norm of each part of the model, or of all parts.

    Clipping adds nothing to the optimizer's state, so that a restored run may change the limit.
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


def checked_optimizer(optimizer: Any, where: str) -> Any:
    """The optimizer; PolicyError for an object that is not an Optax optimizer."""
    if callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None)):
        return optimizer
    raise PolicyError(
        "make_optimizer did not return an optimizer.",
        where=f"{where}, make_optimizer",
        got=type(optimizer).__name__,
        expected="an optax.GradientTransformation, or an object with its methods init and update",
        fix="return one without a learning rate, such as optax.scale_by_adam()",
    )


def first_steps(optimizer: optax.GradientTransformation, zeros: Any) -> jax.Array:
    """[] the sum of the elements of the first steps for gradients of 1, from parameters of 0."""
    gradients, state, total = jax.tree.map(jnp.ones_like, zeros), optimizer.init(zeros), jnp.zeros(())
    for _ in range(_FIRST_STEPS):
        steps, state = optimizer.update(gradients, state, zeros)
        total += sum(map(jnp.sum, jax.tree.leaves(steps)))
    return total


def check_direction(steps: Any, where: str) -> None:
    """PolicyError if `first_steps` are against the gradient.

    With a learning rate of its own an optimizer would climb up the loss, because updates subtract `lr` times its steps.
    """
    if steps < 0:
        raise PolicyError(
            "The optimizer reverses the sign of the gradient, so updates would increase the loss.",
            where=f"{where}, make_optimizer",
            got="steps against the gradient, as those of optax.adam(lr)",
            expected="an optimizer without a learning rate; updates subtract lr times its steps",
            fix="return optax.scale_by_adam() or the like, and set the config key lr",
        )
