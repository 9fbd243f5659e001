"""The experience of the benchmarks with images: 84×84 frames in stacks of 4, made up once, the same for all sides."""

from __future__ import annotations

import numpy as np

SIDE, STACK, ACTIONS = 84, 4, 6
EPISODE = 500  # steps
_DISTINCT = 256  # images, which come again and again


def stacks(steps: int, *, channels_first: bool = False) -> np.ndarray:
    """Returns [steps, 84, 84, 4] uint8: each observation is the one before, moved on by one image.

    Args:
        steps: how many.
        channels_first: [steps, 4, 84, 84], as PyTorch takes them.
    """
    images = np.random.default_rng(0).integers(0, 256, (_DISTINCT, SIDE, SIDE), dtype=np.uint8)
    which = (np.arange(steps)[:, None] + np.arange(STACK)) % _DISTINCT
    found = images[which]
    return found if channels_first else np.ascontiguousarray(np.moveaxis(found, 1, -1))
