"""Checks of the constructor and the outputs of a user's model in JAX or PyTorch; imports neither library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.core import trees
from rollax.core.importing import path_of
from rollax.core.spaces import bounds, walk
from rollax.errors import ConfigError, PolicyError, text_of
from rollax.models.outputs import Outputs, has_critic, initial_state_of, is_recurrent

# An unusual size, so that a transposed output is detected.
_ROWS = 13
_STEPS = 3


def check_arguments(cls: type, names: Iterable[str], custom_model_config: Mapping[str, Any]) -> None:
    """Raises ConfigError unless `cls(observation_space, num_outputs, **custom_model_config)` is a valid call.

    `names` are further arguments that the call passes by keyword.
    """
    # This check is before the call, so that a TypeError raised inside the constructor keeps its own message.
    signature = inspect.signature(cls.__init__)
    further = dict.fromkeys(names)
    try:
        signature.bind(None, None, 0, **further, **custom_model_config)
    except TypeError as error:
        named = "".join(f"{name}={name}, " for name in further)
        raise ConfigError(
            "The custom model cannot be built with these arguments.",
            f"model.custom_model_config, for {path_of(cls)}",
            f"{error}; custom_model_config has {sorted(custom_model_config)}",
        ).expected(
            f"cls(observation_space, num_outputs, {named}**custom_model_config); it takes {signature}",
            "make the keys and the constructor's arguments agree",
        ) from error


def check_outputs(
    model: Any,
    run: Callable[[dict[str, Any]], Any],
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    *,
    needs_value: bool,
    kind: str,
    value_shape: tuple[int, ...] = (),
) -> None:
    """Raises PolicyError if a model fails on a batch, or does not return `Outputs` with the expected shapes.

    A model with memory is checked on single rows, as in acting, and on sequences, as in learning.

    Args:
        run: calls the model with NumPy columns: the columns of `run_model`, and `actions`.
        num_outputs: width of `Outputs.policy`.
        needs_value: whether the model must return `Outputs.value`.
        kind: the type of array that `run` passes to the model, as named in errors.
        value_shape: the shape of one row of `Outputs.value`: () for one value head, else (H,).
    """
    for length in (1, _STEPS) if is_recurrent(model) else (1,):
        rows = _ROWS * length
        columns = {"obs": _members(observation_space, rows), "actions": _members(action_space, rows)}
        where = f"{path_of(type(model))}, called on {rows} observations"
        parts = [f"policy=[{rows}, {num_outputs}]", *([f"value={[rows, *value_shape]}"] if needs_value else [])]
        if is_recurrent(model):
            columns |= _memory(model, action_space, rows)
            where = f"{where}: {_ROWS} sequences of length {length}, one after another"
            parts.append("state=one row like initial_state() for each sequence")
        expected = f"rollax.Outputs({', '.join(parts)}), of floats"
        outputs = _outputs_of(run, columns, where, expected, kind)
        if is_recurrent(model):
            _check_state(outputs.state, columns["state_in"], where)
        _check_output("policy", outputs.policy, (rows, num_outputs), where, expected)
        if needs_value or outputs.value is not None:
            _check_output("value", outputs.value, (rows, *value_shape), where, expected, has_critic=has_critic(model))


def _members(space: spaces.Space, rows: int) -> trees.Tree:
    """Returns example columns of a space: the value 1, clipped to the bounds, so action masks allow all actions."""
    return walk(lambda leaf, _: _example(leaf, rows), space)


def _example(leaf: spaces.Space, rows: int) -> np.ndarray:
    ones = np.ones((rows, *(leaf.shape or ())), leaf.dtype)
    return np.clip(ones, *bounds(leaf)).astype(leaf.dtype)


def _memory(model: Any, action_space: spaces.Space, rows: int) -> dict[str, Any]:
    """The memory columns of `rows` rows in `_ROWS` sequences."""
    known = {"prev_actions": _members(action_space, rows), "prev_rewards": np.zeros(rows, np.float32)}
    names = getattr(model, "memory_inputs", ())
    if not known.keys() >= set(names):
        raise PolicyError(
            "The custom model names an unknown memory input.", f"{path_of(type(model))}.memory_inputs", names
        ).expected(f"some of {sorted(known)}", "list only these names")
    state = tuple(np.repeat(part[None], _ROWS, axis=0) for part in initial_state_of(model))
    return {"state_in": state, **{name: known[name] for name in names}}


def _outputs_of(
    run: Callable[[dict[str, Any]], Any], columns: dict[str, Any], where: str, expected: str, kind: str
) -> Outputs:
    try:
        outputs = run(columns)
    except Exception as error:
        raise PolicyError(
            "The model failed on a batch of observations.", where, f"{type(error).__name__}: {text_of(error)}"
        ).expected(
            expected,
            "see the exception above; obs has the columns of the observation space, [B, ...] or dicts and tuples of "
            f"those, as {kind}",
        ) from error
    if not isinstance(outputs, Outputs):
        raise PolicyError.not_returned("The model", "Outputs", where, _described(outputs)).expected(
            expected, "`from rollax import Outputs`, and return Outputs(policy=..., value=...)"
        )
    if not isinstance(outputs.aux, Mapping):
        raise PolicyError(
            "The model's further outputs have no names.", where, f"aux {_described(outputs.aux)}"
        ).expected("aux={'name': arrays, ...}", "return a dict of named arrays: Outputs(..., aux={'name': array})")
    return outputs


def _check_state(state: Any, expected: Any, where: str) -> None:
    def shapes(parts: Any) -> Any:
        return [(_shape(part), _dtype(part)) for part in parts]

    if not isinstance(state, tuple | list) or shapes(state) != shapes(expected):
        raise PolicyError("The model's state changes its shape or type.", where, _described(state)).expected(
            f"like the state that goes in: {_described(expected)}",
            "return one array [B, ...] for each array of initial_state(), of the same dtype",
        )


def _check_output(
    name: str, output: Any, shape: tuple[int, ...], where: str, expected: str, *, has_critic: bool = False
) -> None:
    if _shape(output) == shape and "float" in _dtype(output):
        return
    if output is None:
        fix = "return state values too: `Outputs(policy=..., value=...)`"
        if has_critic:
            fix += (
                "; the method `critic` gets observations only with centralized_critic=True (A2C, A3C, PPO), or where "
            )
            fix += "postprocess_trajectory adds critic_obs"
    elif name == "value" and _shape(output) == (*shape, 1):
        fix = "drop the last axis: `value.squeeze(-1)`"
    elif _shape(output) == shape:
        fix = f"return floats: convert {name} to float32"
    else:
        columns = ", a single number" if len(shape) == 1 else f" and {shape[1]} columns, one for each value head"
        fix = "one row per observation" + (" and `num_outputs` columns" if name == "policy" else columns)
    raise PolicyError(
        f"The model returns {name} of the wrong shape or type.", where, f"{name} {_described(output)}"
    ).expected(expected, fix)


def _shape(output: Any) -> tuple[int, ...] | None:
    return tuple(output.shape) if hasattr(output, "shape") else None


def _dtype(output: Any) -> str:
    """`float32` for arrays of NumPy and JAX, and tensors of PyTorch."""
    return str(getattr(output, "dtype", None)).removeprefix("torch.")


def _described(output: Any) -> str:
    if hasattr(output, "shape"):
        return f"{_dtype(output)}{list(output.shape)}"
    if isinstance(output, tuple | list):
        return f"{type(output).__name__} of {len(output)}: " + ", ".join(map(_described, output))
    return type(output).__name__
