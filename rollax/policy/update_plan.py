"""`UpdatePlan`: how a batch becomes gradient steps; updates of target parameters, and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.policy.split_model import part_of

Columns = Mapping[str, Any]
UpdatedTargets = Callable[[Columns, Columns, jax.Array], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], jax.Array]
"""Statistics of a minibatch -> [] whether the update ends before its gradient step."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps."""

    minibatch_size: int | None = None  # rows of one gradient step; None: the whole batch
    epochs: int = 1  # passes over each batch
    microbatch_size: int | None = None  # rows of one forward and backward pass, whose gradients are averaged; None: all
    targets: UpdatedTargets | None = None  # None: there are no target parameters
    stops: StopsUpdate | None = None  # None: an update runs all its gradient steps


def periodic_copy(interval: int) -> UpdatedTargets:
    """Targets that become a copy of the parameters every `interval` gradient steps."""

    def updated(targets: Columns, params: Columns, num_updates: jax.Array) -> Columns:
        due = num_updates % interval == 0
        return {name: jnp.where(due, params[name], target) for name, target in targets.items()}

    return updated


def polyak_average(tau: float, parts: Sequence[str], *, interval: int = 1) -> UpdatedTargets:
    """Targets that become (1 - τ) target + τ parameter every `interval` gradient steps.

    `parts` are attributes of the model; other targets are constant.
    """

    def updated(targets: Columns, params: Columns, num_updates: jax.Array) -> Columns:
        names = [name for name in targets if part_of(name) in parts]
        newer, older = ({name: arrays[name] for name in names} for arrays in (params, targets))
        moved: Any = optax.incremental_update(newer, older, tau)
        if interval > 1:
            due = num_updates % interval == 0
            moved = {name: jnp.where(due, moved[name], older[name]) for name in names}
        return {**targets, **moved}

    return updated


def adam(config: Any) -> optax.GradientTransformation:
    """The config's optimizer without learning rate: `grad_clip`, then Adam with `adam_epsilon` if there is one."""
    clip = config.grad_clip
    # Equal structures of state with and without clipping, so that a restored run may change it.
    clipped = optax.identity() if clip is None else optax.clip_by_global_norm(clip)
    return optax.chain(clipped, optax.scale_by_adam(eps=getattr(config, "adam_epsilon", 1e-8)))


def by_part(optimizers: Mapping[Hashable, optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimizer with a separate one for each part of the model, by attribute of the model."""
    return optax.partition(optimizers, lambda params: {name: part_of(name) for name in params})
