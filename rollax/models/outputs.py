"""`Outputs`: what one forward pass of a model returns; `run_model`: runs a model with or without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax.core import trees
from rollax.errors import PolicyError, text_of

State = tuple[Any, ...]
"""Recurrent state: arrays [B, ...], one row for each sequence."""


class _Outputs(NamedTuple):
    policy: Any
    value: Any
    state: State
    aux: Mapping[str, Any]


class Outputs(_Outputs):
    """The named outputs of a model for N observations, as arrays of JAX or tensors of PyTorch.

    Args:
        policy: [N, num_outputs] inputs of the action distribution, or action values.
        value: [N] state values, or [N, H] for H value heads; None if the model returns no values.
        state: arrays [B, ...], the recurrent state after the last rows of B sequences; () without memory.
        aux: name -> [N, ...] further outputs, for the loss.
    """

    __slots__ = ()

    def __new__(
        cls,
        policy: Any,
        value: Any = None,
        state: Any = (),
        aux: Any = None,  # checked where a policy is made
    ) -> Outputs:
        # A new dict for each call, because a model may write into it.
        return super().__new__(cls, policy, value, state, {} if aux is None else aux)


def is_recurrent(model: Any) -> bool:
    """Whether a module has memory, which it declares by a method `initial_state` that does not return ()."""
    return hasattr(model, "initial_state") and not (isinstance(given := model.initial_state(), tuple) and not given)


def has_critic(model: Any) -> bool:
    """Whether the class of a module has a method `critic`, which returns the values of `critic_obs`."""
    # A layer named `critic` does not count: the model's own forward pass may use it.
    written = getattr(model, "_orig_mod", model)  # of torch.compile(model)
    return callable(getattr(type(written), "critic", None))


def initial_state_of(model: Any) -> tuple[NDArray, ...]:
    """The recurrent state at the start of a trajectory, without an axis for sequences; () without memory.

    float64, NumPy's default, becomes float32.
    """
    given = model.initial_state() if is_recurrent(model) else ()
    try:
        parts = [np.asarray(part) for part in given]
    except (RuntimeError, TypeError, ValueError) as error:  # a parameter of PyTorch
        raise PolicyError(
            "The recurrent state is not an array.",
            f"{type(model).__name__}.initial_state()",
            f"{type(error).__name__}: {text_of(error)}",
        ).expected(
            "NumPy arrays, which are constant: no parameters", "return zeros; add a trained initial value in __call__"
        ) from error
    return tuple(part.astype(np.float32) if part.dtype == np.float64 else part for part in parts)


def is_noisy(model: Any) -> bool:
    """Whether a module's attribute `noisy` is True: in training mode it explores, with new random numbers per call."""
    return getattr(model, "noisy", False)


def run_model(model: Any, columns: Any) -> Any:
    """Returns the `Outputs` of a module with or without memory.

    Args:
        model: `model(obs) -> Outputs`; with memory `model(obs, state, **memory_inputs) -> Outputs`, where
            `memory_inputs` are the columns that the attribute `memory_inputs` of the model names.
        columns: `obs` [B·T, ...]; with memory also `state_in` [B, ...], `prev_actions` and `prev_rewards` [B·T, ...].
    """
    if not is_recurrent(model):
        return model(columns["obs"])
    extra = {name: columns[name] for name in getattr(model, "memory_inputs", ())}
    return model(columns["obs"], columns["state_in"], **extra)


def state_values(model: Any, columns: Any, forward: Callable[[Any, Any], Outputs], value_shape: tuple[int, ...]) -> Any:
    """Returns state values [B, *value_shape], of the model's `critic` if there is a column `critic_obs`.

    Raises PolicyError if the model returns no values.

    Args:
        columns: the columns of `run_model`, or only `critic_obs`.
        forward: `forward(model, columns)` is one forward pass.
    """
    if "critic_obs" in columns:
        return values_of_critic(model, columns["critic_obs"], value_shape)
    values = forward(model, columns).value
    if values is None:
        raise PolicyError(
            "The model returns no values.", "compute_values", f"Outputs(value=None) of {type(model).__name__}"
        ).expected("[N] state values", "return values from the model: `Outputs(policy=..., value=...)`")
    return values


def values_of_critic(model: Any, critic_obs: Any, value_shape: tuple[int, ...] = ()) -> Any:
    """Returns the values [B, *value_shape] of a model's method `critic` for B rows; PolicyError for another shape."""
    values, rows = model.critic(critic_obs), trees.length(critic_obs)
    shape = tuple(values.shape) if hasattr(values, "shape") else None
    if shape != (rows, *value_shape):
        raise PolicyError(
            "The method `critic` of the model does not return one value for each row and value head.",
            f"{type(model).__name__}.critic, called on {rows} rows",
            type(values).__name__ if shape is None else f"shape {shape}",
        ).expected(
            (rows, *value_shape),
            "drop the last axis: `values.squeeze(-1)`"
            if shape == (rows, 1)
            else f"return an array [B{''.join(f', {count}' for count in value_shape)}]",
        )
    return values
