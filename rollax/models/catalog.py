"""`make_model`: the model of a policy, from the spaces and the config, or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
from rollax.models.outputs import Outputs, is_recurrent, run_model
from rollax.models.recurrent import RecurrentActorCritic
from rollax.spaces import check_space, zeros

# A model hardly has this size elsewhere, so a transposed output is noticed.
_DUMMY_ROWS = 13
_DUMMY_STEPS = 3


def make_model(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    rngs: nnx.Rngs,
    *,
    needs_value: bool = True,
) -> Any:
    """Returns a module `model(obs) -> Outputs`; see `run_model` for memory. It encodes raw columns of the space.

    Args:
        num_outputs: width of `Outputs.policy`; with `config.free_log_std` means, then as many log standard deviations.
        needs_value: whether a custom model without a `critic` must return `Outputs.value`.
    Raises:
        ConfigError: sizes that do not fit the spaces; a custom model that cannot be found or built with the arguments.
        PolicyError: a custom model that fails on a batch or does not return the expected `Outputs`.
        SpaceError: a space that cannot be encoded.
    """
    check_space(observation_space, "observation_space")
    if config.custom_model is not None:
        return make_custom_model(observation_space, action_space, num_outputs, config, rngs, needs_value=needs_value)
    if config.use_lstm or config.use_gru:
        return RecurrentActorCritic(observation_space, action_space, num_outputs, config, rngs=rngs)
    return ActorCritic(observation_space, num_outputs, config, rngs=rngs)


def make_custom_model(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    rngs: nnx.Rngs,
    *,
    needs_value: bool = False,
    takes_actions: bool = False,
    memory: bool = True,
) -> Any:
    """Returns the user's model, after a check of its output shapes on a dummy batch; other arguments as `make_model`.

    Args:
        takes_actions: whether it is a critic of continuous actions, built with `action_space=` and called as
            `model(obs, actions)`.
        memory: whether a model with memory can be used.
    """
    assert config.custom_model is not None
    cls = _model_class(config.custom_model)
    arguments: dict[str, Any] = {"action_space": action_space} if takes_actions else {}
    _check_arguments(cls, arguments, config.custom_model_config)
    model = cls(observation_space, num_outputs, rngs=rngs, **arguments, **thawed(config.custom_model_config))
    if is_recurrent(model) and not memory:
        raise PolicyError(
            "A custom model with memory, for an algorithm that learns from single rows.",
            where=f"model.custom_model {path_of(cls)}",
            got="a method initial_state",
            expected="a model without memory",
            fix="leave initial_state out, or use PPO, A2C, IMPALA, APPO, or QMIX of a group",
        )
    # With memory it is checked on single rows, as in acting, and on sequences, as in learning.
    for length in (1, _DUMMY_STEPS) if is_recurrent(model) else (1,):
        columns: dict[str, Any] = {"obs": zeros(observation_space, _DUMMY_ROWS * length)}
        if takes_actions:
            columns["actions"] = zeros(action_space, _DUMMY_ROWS)
        if is_recurrent(model):
            columns |= _dummy_memory(model, action_space, _DUMMY_ROWS * length)
        _check_outputs(model, columns, num_outputs, length, needs_value=needs_value and not hasattr(model, "critic"))
    return model


def _check_outputs(model: Any, columns: dict[str, Any], num_outputs: int, length: int, *, needs_value: bool) -> None:
    rows = _DUMMY_ROWS * length
    where = f"{path_of(type(model))}, called on {rows} observations"
    parts = [f"policy=[{rows}, {num_outputs}]", *([f"value=[{rows}]"] if needs_value else [])]
    if is_recurrent(model):
        where = f"{where}: {_DUMMY_ROWS} sequences of length {length}, one after another"
        parts.append("state=one row like initial_state() for each sequence")
    expected = f"rollax.Outputs({', '.join(parts)}), of floats"

    def called(state: Any, columns: dict[str, Any]) -> Any:
        merged = nnx.merge(graphdef, state)
        if "actions" in columns:
            return merged(columns["obs"], columns["actions"])
        return run_model(merged, columns)

    graphdef, state = nnx.split(model)
    try:
        outputs = jax.eval_shape(called, state, columns)
    except Exception as error:
        raise PolicyError(
            "The custom model failed on a batch of observations.",
            where=where,
            got=f"{type(error).__name__}: {error}",
            expected=expected,
            fix="see the exception above; obs has the columns of the observation space: arrays [B, ...] or dicts and "
            "tuples of those, traced by JAX",
        ) from error
    if not isinstance(outputs, Outputs):
        raise PolicyError(
            "The custom model does not return Outputs.",
            where=where,
            got=_described(outputs),
            expected=expected,
            fix="name what it returns: `from rollax import Outputs`, `return Outputs(policy=..., value=...)`",
        )
    if not isinstance(outputs.aux, Mapping):
        raise PolicyError(
            "The custom model's further outputs have no names.",
            where=where,
            got=f"aux {_described(outputs.aux)}",
            expected="aux={'name': arrays, ...}",
            fix="return a dict",
        )
    if is_recurrent(model):
        _check_state(outputs.state, columns["state_in"], where)
    _check_output("policy", outputs.policy, (rows, num_outputs), where, expected)
    if needs_value or outputs.value is not None:
        _check_output("value", outputs.value, (rows,), where, expected)


def _dummy_memory(model: Any, action_space: spaces.Space, rows: int) -> dict[str, Any]:
    """The memory columns of `rows` rows in `_DUMMY_ROWS` sequences."""
    known = {"prev_actions": zeros(action_space, rows), "prev_rewards": np.zeros(rows, np.float32)}
    names = getattr(model, "memory_inputs", ())
    if not known.keys() >= set(names):
        raise PolicyError(
            "The custom model names an unknown memory input.",
            where=f"{path_of(type(model))}.memory_inputs",
            got=names,
            expected=f"some of {sorted(known)}",
            fix="name only those",
        )
    initial = map(np.asarray, model.initial_state())
    state = tuple(np.zeros((_DUMMY_ROWS, *part.shape), part.dtype) for part in initial)
    return {"state_in": state, **{name: known[name] for name in names}}


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
    if output is None:
        fix = "return state values too: `Outputs(policy=..., value=...)`"
    elif name == "value" and getattr(output, "shape", None) == (*shape, 1):
        fix = "drop the last axis: `value.squeeze(-1)`"
    elif getattr(output, "shape", None) == shape:
        fix = f"return floats: `{name}.astype(jnp.float32)`"
    else:
        fix = "one row per observation" + (" and `num_outputs` columns" if name == "policy" else ", a single number")
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
    """The class itself, or the class at 'module:Class'."""
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


def _check_arguments(cls: type[nnx.Module], arguments: dict[str, Any], custom_model_config: dict[str, Any]) -> None:
    # Checked before the call, so that a TypeError raised inside the constructor keeps its traceback.
    signature = inspect.signature(cls.__init__)
    further = "".join(f"{name}={name}, " for name in ("rngs", *arguments))
    try:
        signature.bind(None, None, 0, rngs=None, **arguments, **custom_model_config)
    except TypeError as error:
        raise ConfigError(
            "The custom model cannot be built with these arguments.",
            where=f"model.custom_model_config, for {path_of(cls)}",
            got=f"{error}; custom_model_config has {sorted(custom_model_config)}",
            expected=f"cls(observation_space, num_outputs, {further}**custom_model_config); it takes {signature}",
            fix="make the keys and the constructor's arguments agree",
        ) from error
