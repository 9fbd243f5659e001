"""Losses, targets and statistics as pure functions of arrays and a mask, in JAX or (`advantages`, `evolution`) NumPy.

Functions in JAX raise ShapeError at trace time for arguments of different shapes that would broadcast by mistake. This
module itself does not import JAX.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.errors import ShapeError


def check_same_shape(where: str, **arrays: Any) -> None:
    """Raises ShapeError if arrays or tensors, the arguments of the function `where`, differ in shape."""
    shapes = {name: tuple(np.shape(array)) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        fix = "drop or flatten the extra axis; [B] and [B, 1] are not the same"
        raise ShapeError(f"The arguments of {where} differ in shape.", where, got).expected("one shape for all", fix)
