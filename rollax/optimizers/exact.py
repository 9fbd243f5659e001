"""Exact checkpoints: what would make a restored run differ from the continued one."""

from __future__ import annotations

from rollax.errors import ConfigError
from rollax.rollout.remote_workers import RemoteWorkers
from rollax.rollout.worker import RolloutWorker


def check_exact(local: RolloutWorker, remote: RemoteWorkers, *, streams: bool) -> None:
    """Raises ConfigError if a restored run would sample differently from the continued one.

    Args:
        local: the worker of this process.
        remote: the workers that sample; empty if the local one does.
        streams: whether samples of remote workers arrive between the steps of the optimizer.
    """
    if remote.sample_in_background if remote else local.samples_in_background:
        raise inexact(
            got="sample_async: a thread that samples during learning",
            expected="sample_async=False: otherwise timing decides what a run learns from",
        )
    if remote and streams:
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
