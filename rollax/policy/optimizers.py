"""Optimizers of the parameters of a `JaxPolicy`, without their learning rate."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import optax

from rollax.policy.update_plan import part_of


def adam(config: Any) -> optax.GradientTransformation:
    """The config's optimizer without learning rate: `grad_clip`, then Adam with `adam_epsilon` if there is one."""
    clip = config.grad_clip
    # Equal structures of state with and without clipping, so that a restored run may change it.
    clipped = optax.identity() if clip is None else optax.clip_by_global_norm(clip)
    return optax.chain(clipped, optax.scale_by_adam(eps=getattr(config, "adam_epsilon", 1e-8)))


def by_part(optimizers: Mapping[Hashable, optax.GradientTransformation]) -> optax.GradientTransformation:
    """An optimizer with a separate one for each part of the model, by attribute of the model."""
    return optax.partition(optimizers, lambda params: {name: part_of(name) for name in params})
