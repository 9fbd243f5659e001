"""`make_model`: the model of a policy, from the spaces and the config, or the user's own."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces

from rollax.errors import ConfigError, PolicyError
from rollax.frozen import thawed
from rollax.importing import StoredCode, import_object, path_of
from rollax.models.config import ModelConfig
from rollax.models.networks import ActorCritic
from rollax.models.recurrent import RecurrentActorCritic, is_recurrent
from rollax.spaces import check_space, zeros

# No size that a model is likely to have elsewhere, so that a transposed output is noticed.
_DUMMY_ROWS = 13
_DUMMY_STEPS = 3


def make_model(
    observation_space: spaces.Space, action_space: spaces.Space, num_outputs: int, config: ModelConfig, rngs: nnx.Rngs
) -> nnx.Module:
    """A module to be called as `model(obs) -> (dist_inputs [B, num_outputs], values [B])`; see `run_model` for memory.

    `obs` are raw columns of the space: everything, images included, is encoded inside. Same `rngs`, same weights.
    A custom model is tried once on the shapes of a dummy batch; nothing is computed.

    Args:
        observation_space: of one observation.
        action_space: of one action.
        num_outputs: `num_inputs` of the action distribution. `config.free_log_std` is right only for one whose inputs
            are means, then as many log standard deviations: the caller, who knows the action space, has to see to it.
        config: sizes, or the custom model.
        rngs: where the weights are drawn from.
    Raises:
        ConfigError: sizes that do not fit the spaces; a custom model that cannot be found or built with the arguments.
        PolicyError: a custom model that fails on a batch or returns something else than the pair above.
        SpaceError: a space that cannot be encoded.
    """
    check_space(observation_space, "observation_space")
    if config.custom_model is None and (config.use_lstm or config.use_gru):
        return RecurrentActorCritic(observation_space, action_space, num_outputs, config, rngs=rngs)
    if config.custom_model is None:
        return ActorCritic(observation_space, num_outputs, config, rngs=rngs)
    cls = _model_class(config.custom_model)
    _check_arguments(cls, config.custom_model_config)
    model = cls(observation_space, num_outputs, rngs=rngs, **thawed(config.custom_model_config))
    check_model(model, observation_space, action_space, num_outputs)
    return model


def check_model(
    model: nnx.Module, observation_space: spaces.Space, action_space: spaces.Space, num_outputs: int
) -> None:
    """Raises PolicyError unless the model gives (dist_inputs [B, num_outputs], values [B]); computes nothing.

    One with memory is tried on single rows, as it acts, and on sequences, as it learns.
    """
    for length in (1, _DUMMY_STEPS) if is_recurrent(model) else (1,):
        _check_on_sequences(model, observation_space, action_space, num_outputs, length)


def _check_on_sequences(
    model: nnx.Module, observation_space: spaces.Space, action_space: spaces.Space, num_outputs: int, length: int
) -> None:
    rows = _DUMMY_ROWS * length
    where = f"{path_of(type(model))}, called on {rows} observations"
    expected = f"(dist_inputs [{rows}, {num_outputs}], values [{rows}]), both of floats"
    columns: dict[str, Any] = {"obs": zeros(observation_space, rows)}
    if is_recurrent(model):
        where = f"{where}: {_DUMMY_ROWS} sequences of length {length}, one after another"
        expected = f"{expected}, and a state like initial_state() for each sequence"
        columns |= _dummy_memory(model, action_space, rows)
    graphdef, state = nnx.split(model)
    try:
        outputs = jax.eval_shape(lambda state, columns: _called(nnx.merge(graphdef, state), columns), state, columns)
    except Exception as error:
        raise PolicyError(
            "The custom model failed on a batch of observations.",
            where=where,
            got=f"{type(error).__name__}: {error}",
            expected=expected,
            fix="see the exception above; obs has the columns of the observation space: arrays [B, ...] or dicts and "
            "tuples of those, traced by JAX",
        ) from error
    names = ("dist_inputs", "values", "state_out") if is_recurrent(model) else ("dist_inputs", "values")
    if not (isinstance(outputs, tuple | list) and len(outputs) == len(names)):
        raise PolicyError(
            "The custom model does not return a triple."
            if len(names) == 3
            else "The custom model does not return a pair.",
            where=where,
            got=_described(outputs),
            expected=expected,
            fix=f"return all of them: `return {', '.join(names)}`",
        )
    if len(names) == 3:
        _check_state(outputs[2], columns["state_in"], where)
    _check_output("dist_inputs", outputs[0], (rows, num_outputs), where, expected)
    _check_output("values", outputs[1], (rows,), where, expected)


def _called(model: Any, columns: dict[str, Any]) -> Any:
    """What the model returns, whatever that is."""
    if not is_recurrent(model):
        return model(columns["obs"])
    extra = {name: columns[name] for name in columns if name not in ("obs", "state_in")}
    return model(columns["obs"], columns["state_in"], **extra)


def _dummy_memory(model: Any, action_space: spaces.Space, rows: int) -> dict[str, Any]:
    """The columns of memory that a call takes: those of so many rows in `_DUMMY_ROWS` sequences."""
    initial = tuple(np.asarray(part) for part in model.initial_state())
    known = {
        "prev_actions": zeros(action_space, rows),
        "prev_rewards": np.zeros(rows, np.float32),
    }
    wanted = getattr(model, "memory_inputs", ())
    if not known.keys() >= set(wanted):
        raise PolicyError(
            "The custom model asks for a memory that there is not.",
            where=f"{path_of(type(model))}.memory_inputs",
            got=wanted,
            expected=f"some of {sorted(known)}",
            fix="name only those",
        )
    state = tuple(np.zeros((_DUMMY_ROWS, *part.shape), part.dtype) for part in initial)
    return {"state_in": state, **{name: known[name] for name in wanted}}


def _check_state(state: Any, expected: Any, where: str) -> None:
    def shapes(parts: Any) -> Any:
        return [(getattr(part, "shape", None), str(getattr(part, "dtype", None))) for part in parts]

    if not isinstance(state, tuple | list) or shapes(state) != shapes(expected):
        raise PolicyError(
            "The custom model's state changes its shape or type.",
            where=where,
            got=_described(state),
            expected=f"like the state that goes in: {_described(expected)}",
            fix="return one array [B, ...] for each that initial_state() returns, of the same dtype",
        )


def _check_output(name: str, output: Any, shape: tuple[int, ...], where: str, expected: str) -> None:
    if getattr(output, "shape", None) == shape and jnp.issubdtype(output.dtype, jnp.floating):
        return
    if name == "values" and getattr(output, "shape", None) == (*shape, 1):
        fix = "drop the last axis: `values.squeeze(-1)`"
    elif getattr(output, "shape", None) == shape:
        fix = f"return floats: `{name}.astype(jnp.float32)`"
    else:
        fix = "one row per observation" + (
            " and `num_outputs` columns" if name == "dist_inputs" else ", a single number"
        )
    raise PolicyError(
        f"The custom model returns {name} of the wrong shape or type.",
        where=where,
        got=f"{name} {_described(output)}",
        expected=expected,
        fix=fix,
    )


def _described(output: Any) -> str:
    if hasattr(output, "shape"):
        return f"{output.dtype}{list(output.shape)}"
    if isinstance(output, tuple | list):
        return f"{type(output).__name__} of {len(output)}: " + ", ".join(map(_described, output))
    return type(output).__name__


def _model_class(model: type | str | StoredCode) -> type[Any]:
    """The class itself, or the one that 'module:Class' names."""
    cls = import_object(model, "model.custom_model") if isinstance(model, str) else model
    if isinstance(cls, StoredCode):
        raise cls.error()
    if not (isinstance(cls, type) and issubclass(cls, nnx.Module)):
        raise ConfigError(
            "The custom model is no Flax NNX module class.",
            where="model.custom_model",
            got=cls,
            expected="a subclass of flax.nnx.Module (the class, not an instance)",
            fix="derive it from nnx.Module",
        )
    return cls


def _check_arguments(cls: type[nnx.Module], custom_model_config: dict[str, Any]) -> None:
    # A mismatch is found here, so that a TypeError out of the constructor keeps its own meaning and traceback.
    signature = inspect.signature(cls.__init__)
    try:
        signature.bind(None, None, 0, rngs=None, **custom_model_config)
    except TypeError as error:
        raise ConfigError(
            "The custom model cannot be built with these arguments.",
            where=f"model.custom_model_config, for {path_of(cls)}",
            got=f"{error}; custom_model_config has {sorted(custom_model_config)}",
            expected=f"cls(observation_space, num_outputs, rngs=rngs, **custom_model_config); it takes {signature}",
            fix="make the keys and the constructor's arguments agree",
        ) from error
