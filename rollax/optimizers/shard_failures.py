"""What is told of replay shards that are not there any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollax.errors import WorkerError


def hung(waited_s: float) -> WorkerError:
    """A shard that has not answered in time."""
    return WorkerError(
        "A replay shard has hung.",
        got=f"no answer for {waited_s:.3g} s",
        expected="one within sample_timeout_s",
        fix="look for a machine that swaps: lower buffer_size; or raise sample_timeout_s",
    )


def not_there(indices: Sequence[int], last: Mapping[int, Exception]) -> WorkerError:
    """Shards that cannot be called; its cause is the last one's error."""
    error = WorkerError(
        "Replay shards that are not there.",
        where=f"shards {sorted(indices)}",
        got="; ".join(f"shard {index}: {error}" for index, error in sorted(last.items())) or "they have been stopped",
        expected="at least one that keeps what is sampled; all of them for a checkpoint",
        fix="mend the cause shown above; num_workers=0 runs the same in this process, where a debugger works",
    )
    error.__cause__ = list(last.values())[-1] if last else None
    return error
