"""Random numbers of PyTorch from a separate stream, without changing the global streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def random_numbers_of(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Inside the block, random numbers come from `generator`, which advances, instead of PyTorch's global streams.

    On a GPU, the numbers come from a stream whose seed is drawn from the generator.
    """
    kept = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    gpu = _gpu(device)
    kept_on_gpu = None if gpu is None else gpu.get_rng_state()
    try:
        if gpu is not None:
            gpu.manual_seed(int(torch.randint(2**31, ())))
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(kept)
        if gpu is not None:
            gpu.set_rng_state(kept_on_gpu)


def random_state(device: torch.device) -> list[Tensor]:
    """The states of PyTorch's global streams, of the CPU and of the device."""
    gpu = _gpu(device)
    return [torch.get_rng_state(), *([] if gpu is None else [gpu.get_rng_state()])]


def _gpu(device: torch.device) -> Any:
    return None if device.type == "cpu" else getattr(torch, device.type)
