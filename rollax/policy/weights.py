"""A check of weights by name, before a policy takes them over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.errors import PolicyError

_SAME_NETWORK = (
    "use the spaces and the config that the weights were made with: 'model', and keys of the algorithm that shape its "
    "network too, such as num_atoms, noisy, dueling, hiddens, twin_q, mixer"
)


def check_weights(weights: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises PolicyError for names or shapes of another model; `shapes` are those of the policy's own, by name."""
    if weights.keys() != shapes.keys():
        raise PolicyError(
            "Weights of another model.",
            where=where,
            got=f"{len(weights)} arrays; missing: {sorted(shapes.keys() - weights.keys())}, "
            f"unknown: {sorted(weights.keys() - shapes.keys())}",
            expected=f"{len(shapes)} arrays: {sorted(shapes)}",
            fix=_SAME_NETWORK,
        )
    for name, value in weights.items():
        if np.shape(value) != shapes[name]:
            raise PolicyError(
                "A weight of the wrong shape.",
                where=f"{where}, {name}",
                got=np.shape(value),
                expected=shapes[name],
                fix=_SAME_NETWORK,
            )
