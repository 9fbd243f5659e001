"""Synthetic observations of the benchmarks with images: stacks of four 84×84 frames, the same for all sides."""

from __future__ import annotations

import numpy as np

SIDE, STACK, ACTIONS = 84, 4, 6
EPISODE = 500  # steps
_DISTINCT = 256  # distinct images, which repeat


def stacks(steps: int, *, channels_first: bool = False) -> np.ndarray:
    """Returns [steps, 84, 84, 4] uint8: each observation drops the oldest image of the previous one and adds a new one.

    Args:
        steps: number of observations.
        channels_first: return [steps, 4, 84, 84], the layout of PyTorch.
    """
    images = np.random.default_rng(0).integers(0, 256, (_DISTINCT, SIDE, SIDE), dtype=np.uint8)
    which = (np.arange(steps)[:, None] + np.arange(STACK)) % _DISTINCT
    found = images[which]
    return found if channels_first else np.ascontiguousarray(np.moveaxis(found, 1, -1))
