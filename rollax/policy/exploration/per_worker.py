"""How much each of many workers explores: some hardly, some a lot, each the same all the time."""

from __future__ import annotations


def worker_scale(base: float, alpha: float, worker_index: int, num_workers: int) -> float:
    """How much the worker explores.

    Source: Horgan et al. (2018), section 4.1, arXiv:1803.00933: ε_i = ε^(1 + α i / (N - 1)), i = 0, ..., N - 1.
        Deviations: an only worker, and the driver's process, take the middle of the ladder.

    Args:
        base: ε in [0, 1].
        alpha: α >= 0.
        worker_index: i + 1; 0 in the driver's process.
        num_workers: N.
    """
    place = 0.5 if worker_index == 0 or num_workers < 2 else (worker_index - 1) / (num_workers - 1)
    return base ** (1 + alpha * place)
