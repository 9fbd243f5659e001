"""Makes the default or custom model of a `TorchPolicy` from its config, and checks any model with a few rows."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn.parameter import is_lazy

from rollax.config import TrainerConfig
from rollax.config.groups import critic_space_of
from rollax.core.frozen import thawed
from rollax.core.importing import StoredCode, import_object
from rollax.core.introspection import overrides
from rollax.errors import ConfigError, PolicyError
from rollax.models.action_embeddings import check_parametric
from rollax.models.config import ModelConfig
from rollax.models.output_checks import check_arguments, check_outputs
from rollax.models.outputs import run_model
from rollax.torch.networks import CentralCritic, make_model
from rollax.torch.random_numbers import random_state
from rollax.torch.weights import to_tensors


def make_policy_model(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: TrainerConfig,
    where: str,
    value_shape: tuple[int, ...] = (),
) -> nn.Module:
    """Returns the model of the algorithm `where`, with a centralized critic if the config has `centralized_critic`.

    Raises ConfigError for a custom model that cannot be found or does not take its `custom_model_config`, for
    `use_attention`, for `free_log_std` without Gaussian actions, or for a centralized critic without a space.
    """
    sizes = config.model
    critic_space = critic_space_of(config, where)
    if critic_space is not None:
        # The actor's own values are not used, so they need no layers.
        sizes = sizes.model_copy(update={"vf_share_layers": True})
    if sizes.custom_model is not None:
        model = _custom_model(observation_space, num_outputs, sizes)
    else:
        check_parametric(observation_space, action_space)
        model = make_model(observation_space, action_space, num_outputs, sizes, value_shape)
    if critic_space is not None and not hasattr(model, "critic"):
        model.critic = CentralCritic(critic_space, sizes, value_shape)
    return model


@torch.no_grad()
def check_model(
    model: nn.Module,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    device: torch.device,
    *,
    needs_value: bool,
    value_shape: tuple[int, ...] = (),
) -> bool:
    """Whether the model draws random numbers in evaluation mode. Raises the errors of `check_outputs`."""
    draws = False

    def run(columns: dict[str, Any]) -> Any:
        nonlocal draws
        outputs, drew = _run(model, columns, device)
        if drew:  # layers such as LazyLinear draw their weights in the first call, and no numbers in the next
            outputs, drew = _run(model, columns, device)
        draws = draws or drew
        return outputs

    check_outputs(
        model,
        run,
        observation_space,
        action_space,
        num_outputs,
        needs_value=needs_value,
        value_shape=value_shape,
        kind="tensors",
    )
    return draws


def check_module(model: Any, where: str) -> nn.Module:
    """The model; PolicyError unless it is a module, with all of its state in parameters and buffers."""
    if not isinstance(model, nn.Module):
        raise PolicyError("The model is not a module of PyTorch.", f"{where}, make_model", model).expected(
            "an instance of torch.nn.Module", "return the module itself: `return Model(...)`"
        )
    refuse_extra_state(model, f"{where}, make_model")
    return model


def refuse_extra_state(model: nn.Module, where: str) -> None:
    """Raises PolicyError for a module with `get_extra_state`: that state is neither a parameter nor a buffer."""
    for name, module in model.named_modules():
        if overrides(type(module), nn.Module, "get_extra_state"):
            raise PolicyError(
                "The state of a module's `get_extra_state` would be lost: weights and checkpoints do not store it.",
                f"{where}, module {name or 'itself'}",
                type(module).__name__,
            ).expected("state in parameters and buffers", "keep it in buffers: self.register_buffer(name, tensor)")


def check_sizes_known(model: nn.Module, where: str) -> None:
    """Raises PolicyError for layers of the algorithm `where` whose sizes are not known yet."""
    if names := [name for name, tensor in model.named_parameters() if is_lazy(tensor)]:
        raise PolicyError(
            "The sizes of some layers are not known when the policy is created.",
            f"{where}, make_model",
            f"parameters without a shape: {names}",
        ).expected(
            "a model whose parameters have shapes; the check of outputs calls the model once, which sets "
            "the shapes, but is left out if the algorithm overrides forward",
            "use layers with sizes (nn.Linear for nn.LazyLinear), or call the model once in make_model",
        )


def _custom_model(observation_space: spaces.Space, num_outputs: int, config: ModelConfig) -> nn.Module:
    assert config.custom_model is not None
    cls = _module_class(config.custom_model)
    check_arguments(cls, (), config.custom_model_config)
    return cls(observation_space, num_outputs, **thawed(config.custom_model_config))


def _run(model: nn.Module, columns: dict[str, Any], device: torch.device) -> tuple[Any, bool]:
    """`(outputs, whether random numbers were drawn)`."""
    before = random_state(device)
    outputs = run_model(model, to_tensors(columns, device))
    return outputs, any(not torch.equal(*states) for states in zip(before, random_state(device), strict=True))


def _module_class(model: type | str | StoredCode) -> type[nn.Module]:
    """The class itself, or the class at 'module:Class'; ConfigError if it is no subclass of nn.Module."""
    cls = import_object(model, "config key 'model.custom_model'") if isinstance(model, str) else model
    if isinstance(cls, StoredCode):
        raise cls.error()
    if not (inspect.isclass(cls) and issubclass(cls, nn.Module)):
        raise ConfigError("The custom model is not a class of PyTorch modules.", "model.custom_model", cls).expected(
            "a subclass of torch.nn.Module, for a policy in PyTorch",
            "derive it from torch.nn.Module, or use a policy in JAX",
        )
    return cls
