"""The tensors of models by name, as NumPy copies for checkpoints and other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollax.core import trees
from rollax.errors import PolicyError
from rollax.policy.update_plan import check_rates, part_of


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> trained parameter; a tied parameter is listed once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def owners_of(model: nn.Module) -> dict[str, set[str]]:
    """Name of a trained parameter -> all attributes of the model that contain it."""
    names = {parameter: name for name, parameter in parameters_of(model).items()}
    owners: dict[str, set[str]] = {name: set() for name in names.values()}
    for alias, parameter in model.named_parameters(remove_duplicate=False):
        if parameter in names:
            owners[names[parameter]].add(part_of(alias))
    return owners


def parameter_groups(model: nn.Module, rates: Any, where: str) -> Any:
    """The model's trained parameters, in groups if `rates` has a rate for each part; `where` is the policy class.

    Raises PolicyError if the model has no trained parameters, or for a parameter without a learning rate.
    """
    parameters = parameters_of(model)
    if not parameters:
        got = f"{type(model).__name__}, without parameters"
        raise PolicyError("The model has no parameters to train.", f"policy class {where}, make_model", got).expected(
            "a model with trained parameters", "keep the parameters in nn.Parameter, as layers such as nn.Linear do"
        )
    if not isinstance(rates, Mapping):
        return list(parameters.values())
    check_rates({part_of(name) for name in parameters}, rates, where)
    parts = {part: [p for name, p in parameters.items() if part_of(name) == part] for part in rates}
    return [{"params": found, "name": part} for part, found in parts.items() if found]


def extra_of(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor of the model's other state: persistent buffers, and parameters that are not trained."""
    stored = model.state_dict(keep_vars=True).keys()
    fixed = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {**fixed, **{name: buffer for name, buffer in model.named_buffers() if name in stored}}


def as_numpy(tensor: Tensor) -> np.ndarray:
    """The tensor as an array, without a copy if it is on the CPU; bfloat16, which NumPy lacks, becomes float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return tensor.detach().cpu().numpy()


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy of the tensor as an array; bfloat16 becomes float32."""
    return np.array(as_numpy(tensor))


def as_tensor(array: Any, device: torch.device | None = None) -> Tensor:
    """An array or tensor as a tensor; on the CPU, only arrays that are read-only or reversed are copied."""
    if isinstance(array, np.ndarray) and (not array.flags.writeable or min(array.strides, default=0) < 0):
        array = np.array(array, order="C")  # PyTorch cannot share such memory
    return torch.as_tensor(array, device=device)


def to_tensors(tree: trees.Tree, device: torch.device) -> trees.Tree:
    """Columns as tensors on a device, by `as_tensor`; float64 becomes float32, as in JAX."""

    def tensor(leaf: np.ndarray) -> Tensor:
        leaf = np.asarray(leaf)
        return as_tensor(leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, device)

    return trees.tree_map(tensor, tree)


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], arrays: Mapping[str, Any]) -> None:
    """Copies arrays of the same names and shapes into tensors."""
    for name, tensor in tensors.items():
        tensor.copy_(as_tensor(np.asarray(arrays[name])))
