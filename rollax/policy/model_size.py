"""The size of models that a file describes, compared with the weights in it before a model is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rollax.core.memory import gib
from rollax.errors import PolicyError

_ANYWAY = 64 << 20  # bytes
_USES = 2  # evaluation may have policies of its own


@dataclass
class _Left:
    size: int


_LEFT: ContextVar[_Left | None] = ContextVar("bytes of models that may still be built", default=None)


def weights_in(state: Any) -> Mapping[str, Any]:
    """The weights in the stored state of a policy; empty if it has none."""
    weights = state.get("weights") if isinstance(state, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


@contextmanager
def models_as_large_as(weights: Iterable[Mapping[str, Any]]) -> Iterator[None]:
    """In its block, policies of rollax are refused if their models are much larger than these weights together.

    Args:
        weights: of each policy, name -> array.
    """
    sizes = [math.prod(array.shape) * 4 for policy in weights for array in policy.values() if hasattr(array, "shape")]
    token = _LEFT.set(_Left(_ANYWAY + _USES * sum(sizes)))
    try:
        yield
    finally:
        _LEFT.reset(token)


def check_model_size(shapes: Callable[[], Mapping[str, tuple[int, ...]]], where: str) -> None:
    """Raises PolicyError if a model is larger than the weights in the file that describes it.

    Args:
        shapes: returns name -> shape of the arrays of the model, without building it.
        where: the policy, in errors.
    """
    left = _LEFT.get()
    if left is None:
        return
    size = sum(math.prod(shape) * 4 for shape in shapes().values())
    if size > left.size:
        fix = "use the 'model' and the spaces that the weights were made with, or another copy of the file"
        raise PolicyError(
            "The model is much larger than the stored weights.", where, f"a model of {gib(size)}"
        ).expected(f"at most {gib(left.size)}, for the size of the stored weights", fix)
    left.size -= size
