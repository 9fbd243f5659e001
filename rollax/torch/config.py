"""The config keys of policies in PyTorch, and the choice of the device."""

from __future__ import annotations

import os
from typing import Literal

import torch
from pydantic import Field

from rollax.config import TrainerConfig
from rollax.config.field_group import FieldGroup
from rollax.errors import ConfigError
from rollax.processes.settings import TORCH_DEVICE


class TorchFields(FieldGroup):
    """The device of a `TorchPolicy`, and compilation of its loss."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto",
        description="where the model computes; auto: on the first CUDA GPU, or on the CPU if there is none; the "
        "environment variable CUDA_VISIBLE_DEVICES=1 selects the second GPU; workers in other processes use the CPU, "
        "unless num_gpus_per_worker reserves a GPU for them",
    )
    torch_compile: bool = Field(
        default=False,
        description="whether torch.compile compiles the loss: once for each minibatch size; requires a C++ compiler",
    )


class TorchConfig(TorchFields, TrainerConfig):
    """The common fields and the fields of policies in PyTorch."""


def chosen_device(wanted: str) -> torch.device:
    """Returns the device for the config key `device`; ConfigError if PyTorch does not find the device.

    The environment variable `ROLLAX_TORCH_DEVICE`, if set, replaces the config key, and is not checked.
    """
    if os.environ.get(TORCH_DEVICE):
        return torch.device(os.environ[TORCH_DEVICE])
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return torch.device("cuda" if there["cuda"] else "cpu")
    if not there[wanted]:
        raise ConfigError("PyTorch does not find this device.", "config key 'device'", wanted).expected(
            f"auto, or one of {[name for name, found in there.items() if found]}",
            "leave device out, or install a build of PyTorch for this device",
        )
    return torch.device(wanted)
