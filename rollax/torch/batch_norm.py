"""Layers with running statistics, and the treatment of a single row, which has no batch statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rollax.errors import ConfigError
from rollax.policy.update_plan import UpdatePlan
from rollax.torch.layers import RunningNorm


def batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> layer of batch normalization."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def with_running_statistics(model: nn.Module) -> list[nn.Module]:
    """The layers whose running statistics change in training mode."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm | RunningNorm)]


def check_minibatches(layers: Iterable[str], plan: UpdatePlan, max_seq_len: int, where: str) -> None:
    """Raises ConfigError if there are layers of batch normalization and all minibatches have one row."""
    size = min(size or 2 for size in (plan.minibatch_size, plan.microbatch_size))
    if size == 1 == max_seq_len and (names := sorted(layers)):
        what = "Batch normalization requires minibatches of more than one row."
        got, expected = f"minibatches of 1 row, and the layers {names}", "minibatches of 2 or more rows"
        raise ConfigError(what, where, got, expected=expected, fix="raise sgd_minibatch_size, or use nn.LayerNorm")


@contextmanager
def in_evaluation(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block, `layers` are in evaluation mode: they use their running statistics."""
    changed = [layer for layer in layers if layer.training]
    try:
        for layer in changed:
            layer.eval()
        yield
    finally:
        for layer in changed:
            layer.train()
