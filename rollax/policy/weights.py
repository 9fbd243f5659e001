"""Checks of weights and gradients by name, before a policy takes them over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.core.numbers import NON_NUMERIC_KINDS
from rollax.errors import PolicyError

_SAME_NETWORK = (
    "use the spaces and the config that the weights were made with: 'model', and keys of the algorithm that shape its "
    "network too, such as num_atoms, noisy, dueling, hiddens, twin_q, mixer"
)


def check_gradients(gradients: Any, where: str) -> None:
    """Raises PolicyError unless the gradients are a dict; `check_weights` checks the arrays."""
    if not isinstance(gradients, Mapping):
        what = "The gradients are not a dict of arrays by name."
        fix = "gradients, statistics = policy.compute_gradients(batch); then policy.apply_gradients(gradients)"
        raise PolicyError(what, f"{where}, apply_gradients", type(gradients).__name__).expected("name -> array", fix)


def check_weights(weights: Any, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises PolicyError unless they are real numbers with the names and shapes of the policy's own, `shapes`."""
    if not isinstance(weights, Mapping):
        raise PolicyError("The weights are not a dict of arrays by name.", where, type(weights).__name__).expected(
            "name -> array", "pass the dict that get_weights() of a policy with the same model returned"
        )
    if weights.keys() != shapes.keys():
        raise PolicyError(
            "The weights are of a different model.",
            where,
            f"{len(weights)} arrays; missing: {sorted(shapes.keys() - weights.keys())}, "
            f"unknown: {sorted(weights.keys() - shapes.keys())}",
        ).expected(f"{len(shapes)} arrays: {sorted(shapes)}", _SAME_NETWORK)
    for name, value in weights.items():
        if np.shape(value) != shapes[name]:
            raise PolicyError(
                "An array of the weights has the wrong shape.", f"{where}, {name}", np.shape(value)
            ).expected(shapes[name], _SAME_NETWORK)
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        if getattr(dtype, "kind", "") in NON_NUMERIC_KINDS:
            raise PolicyError(
                "An array of the weights has no real numbers.", f"{where}, {name}", f"dtype {dtype}"
            ).expected("real numbers, such as float32", "convert it: np.asarray(array, np.float32)")
