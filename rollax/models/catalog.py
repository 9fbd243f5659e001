"""`make_model`: the default model for the spaces and the config of a policy, or the user's model."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from flax import nnx
from gymnasium import spaces

from rollax.core.frozen import thawed
from rollax.core.importing import StoredCode, import_object, path_of
from rollax.core.spaces import check_space
from rollax.errors import ConfigError, PolicyError
from rollax.models.config import ModelConfig
from rollax.models.networks import ActorCritic
from rollax.models.outputs import has_critic, is_recurrent, run_model


def make_model(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    rngs: nnx.Rngs,
    *,
    needs_value: bool = True,
    value_shape: tuple[int, ...] = (),
) -> Any:
    """Returns a module `model(obs) -> Outputs` for raw columns of observations; see `run_model` for memory.

    Args:
        num_outputs: width of `Outputs.policy`; with `config.free_log_std`, one half are means and the other half log
            standard deviations.
        needs_value: whether a custom model without a method `critic` must return `Outputs.value`.
        value_shape: the shape of one row of `Outputs.value`: () for one value head, else (H,).
    Raises:
        ConfigError: sizes do not fit the spaces, or the custom model cannot be found or built with the arguments.
        PolicyError: the custom model fails on a batch, or does not return the expected `Outputs`.
        SpaceError: a space cannot be encoded.
    """
    check_space(observation_space, "observation_space")
    both = observation_space, action_space
    if config.custom_model is not None:
        return make_custom_model(*both, num_outputs, config, rngs, needs_value=needs_value, value_shape=value_shape)
    if config.has_memory:
        from rollax.models.recurrent import RecurrentActorCritic  # loaded only where it is used

        return RecurrentActorCritic(*both, num_outputs, config, rngs=rngs, value_shape=value_shape)
    return ActorCritic(observation_space, num_outputs, config, rngs=rngs, value_shape=value_shape)


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
    value_shape: tuple[int, ...] = (),
) -> Any:
    """Returns the user's model, after a check of its output shapes on a dummy batch.

    Arguments that are not listed are as for `make_model`.

    Args:
        takes_actions: whether the model is a critic of continuous actions, built with `action_space=` and called as
            `model(obs, actions)`.
        memory: whether a model with memory is allowed.
    """
    from rollax.models.output_checks import check_arguments  # loaded only where it is used

    assert config.custom_model is not None
    cls = _model_class(config.custom_model)
    arguments: dict[str, Any] = {"action_space": action_space} if takes_actions else {}
    check_arguments(cls, ("rngs", *arguments), config.custom_model_config)
    model = cls(observation_space, num_outputs, rngs=rngs, **arguments, **thawed(config.custom_model_config))
    if is_recurrent(model) and not memory:
        raise PolicyError(
            "The custom model has memory, which the algorithm does not support.",
            f"model.custom_model {path_of(cls)}",
            "initial_state",
        ).expected(
            "a model without memory",
            "leave initial_state out, or use PPO, A2C, IMPALA, APPO, PQN, DQN, or QMIX for groups",
        )
    check_model(
        model,
        observation_space,
        action_space,
        num_outputs,
        needs_value=needs_value and not has_critic(model),
        takes_actions=takes_actions,
        value_shape=value_shape,
    )
    return model


def check_module(model: Any, where: str) -> None:
    """Raises PolicyError unless the model is a module."""
    if not isinstance(model, nnx.Module):
        raise PolicyError("The model is not a module of Flax NNX.", where, model).expected(
            "an instance of flax.nnx.Module", "return the module itself: `return Model(..., rngs=rngs)`"
        )


def check_model(
    model: Any,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    *,
    needs_value: bool,
    takes_actions: bool = False,
    value_shape: tuple[int, ...] = (),
) -> None:
    """Raises PolicyError for a model with wrong `Outputs`; see `check_outputs` and `make_custom_model`."""
    from rollax.models.output_checks import check_outputs  # loaded only where it is used

    graph, state = nnx.split(model)
    run = partial(_run, graph, takes_actions)
    check_outputs(
        model,
        lambda columns: jax.eval_shape(run, state, columns),
        observation_space,
        action_space,
        num_outputs,
        needs_value=needs_value,
        kind="arrays, traced by JAX",
        value_shape=value_shape,
    )


def _run(graph: Any, takes_actions: bool, state: Any, columns: dict[str, Any]) -> Any:
    model = nnx.merge(graph, state)
    return model(columns["obs"], columns["actions"]) if takes_actions else run_model(model, columns)


def _model_class(model: type | str | StoredCode) -> type[Any]:
    """Returns the class itself, or the class at 'module:Class'."""
    cls = import_object(model, "config key 'model.custom_model'") if isinstance(model, str) else model
    if isinstance(cls, StoredCode):
        raise cls.error()
    if not (isinstance(cls, type) and issubclass(cls, nnx.Module)):
        raise ConfigError("The custom model is not a class of Flax NNX modules.", "model.custom_model", cls).expected(
            "a subclass of flax.nnx.Module, not an instance of it",
            "derive it from nnx.Module; for a module of PyTorch, use a policy in PyTorch",
        )
    return cls
