"""`Outputs`: what one forward pass of a model returns, and `run_model`, which makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Float

State = tuple[Array, ...]
"""Recurrent state: arrays [B, ...], one row for each sequence."""


class Outputs(NamedTuple):
    """The named outputs of a model for N observations.

    Args:
        policy: [N, num_outputs] what actions are made of: the inputs of the action distribution, or action values.
        value: [N] state values; None of a model that has none.
        state: the recurrent state after the rows; empty of a model without memory.
        aux: further outputs by name, for the loss: auxiliary heads, or the logits of a distribution of returns.
    """

    policy: Float[Array, "N A"]
    value: Any = None
    state: State = ()
    aux: Mapping[str, Any] = {}


def is_recurrent(model: Any) -> bool:
    """True for a module with memory: one that has `initial_state()`."""
    return hasattr(model, "initial_state")


def is_noisy(model: Any) -> bool:
    """True for a module that explores in training mode, with new random numbers for each call: its `noisy` is True."""
    return getattr(model, "noisy", False)


def run_model(model: Any, columns: Any) -> Outputs:
    """The outputs of a module with or without memory.

    Args:
        model: `model(obs) -> Outputs`; with memory `model(obs, state, **{those of its memory_inputs}) -> Outputs`.
        columns: `obs` [B·T, ...]; with memory `state_in` [B, ...] too, and `prev_actions`, `prev_rewards` [B·T, ...].
    """
    return call_model(model, columns)


def call_model(model: Any, columns: Any) -> Any:
    """What the model returns, which need not be `Outputs`; see `run_model`."""
    if not is_recurrent(model):
        return model(columns["obs"])
    extra = {name: columns[name] for name in getattr(model, "memory_inputs", ())}
    return model(columns["obs"], columns["state_in"], **extra)
