"""Weights of a JAX model, converted to those of its twin."""

import numpy as np
import torch
from torch import nn

_OF_NORMS = {"scale": "weight", "mean": "running_mean", "var": "running_var", "calls": "num_batches_tracked"}


def torch_weights(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers under PyTorch's names: kernels [in, out] are weights [out, in], HWIO ones OIHW."""
    found = {}
    for name, value in weights.items():
        value = np.asarray(value)
        if name.endswith("kernel"):
            name = name.removesuffix("kernel") + "weight"
            value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        if ".norms." in name:
            layer, _, last = name.rpartition(".")
            name = f"{layer}.{_OF_NORMS.get(last, last)}"
        found[name] = np.array(value, order="C")  # a copy that can be written
    return found


def copy_weights(weights: dict[str, np.ndarray], twin: nn.Module) -> None:
    """Copies the weights of a JAX model to its twin."""
    tensors = {name: torch.as_tensor(value) for name, value in torch_weights(weights).items()}
    twin.load_state_dict(tensors, strict=True)
