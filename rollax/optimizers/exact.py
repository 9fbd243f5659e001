"""Exact checkpoints: what would make a restored run differ from the continued one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollax.errors import ConfigError
from rollax.rollout.worker import RolloutWorker

if TYPE_CHECKING:
    from rollax.optimizers.optimizer import Optimizer


def check_exact(optimizer: Optimizer) -> None:
    """Raises ConfigError if a restored run would sample differently from the continued one."""
    local, remote = optimizer.local_worker, optimizer.remote
    if optimizer.samples_in_background:
        raise inexact(
            got="sample_async: a thread that samples during learning",
            expected="sample_async=False: otherwise timing decides what a run learns from",
        )
    if remote and not optimizer.pauses_between_steps:
        raise inexact(
            got=f"num_workers={len(remote)}, whose samples arrive during learning",
            expected="num_workers=0 for this algorithm: with workers, timing decides what a run learns from",
        )
    replies = remote.call_all("apply", _difference, raises=True).values() if remote else (_difference(local),)
    for difference in filter(None, replies):
        raise inexact(*difference)


def inexact(got: str, expected: str) -> ConfigError:
    """The error for a run that cannot be saved exactly: continuing and restoring would differ."""
    return ConfigError("This run cannot be saved exactly.", "save(exact=True)", got).expected(
        expected, "call save() without exact: the restored run continues from the same weights, with different samples"
    )


def _difference(worker: RolloutWorker) -> tuple[str, str] | None:
    """`(cause, remedy)` if a restored worker would sample differently from a continued one, else None."""
    if not worker.samples:
        return None
    if not worker.env.repeats:
        return (
            f"{worker.env!r}: it takes no seed, or other threads or processes decide what it returns",
            "an environment that takes a seed and is stepped in this process, or remote_env_batch_wait_ms=1e9 for "
            "remote ones",
        )
    if worker.config.seed is None:
        return "seed=None: restored environments draw other random numbers", "a seed in the config"
    return None
