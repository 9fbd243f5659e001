"""What the replay shards of one run are made with, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rollax.errors import ConfigError
from rollax.optimizers.replay_buffers import rows_of_update
from rollax.policy.policy import Policy
from rollax.replay.shard import BufferOfSize, ReplayShard, ShardSettings


def shard_settings(
    policies: Mapping[str, Policy],
    make_buffers: Callable[[Policy], BufferOfSize],
    capacities: Sequence[int],
    train_batch_size: int,
    beta: float,
    seed: int | None,
) -> ShardSettings:
    """The settings; see `AsyncReplayOptimizer` and `ShardSettings` for the arguments.

    Raises:
        ConfigError: a buffer does not take its settings, or a policy wants sequences.
    """
    _check_take_rows(policies)
    rows = {i: rows_of_update(policy, train_batch_size) for i, policy in policies.items()}
    settings = ShardSettings({i: make_buffers(policy) for i, policy in policies.items()}, capacities, rows, beta, seed)
    for index in range(1, len(capacities) + 1):
        ReplayShard(settings, index)  # what is wrong is told here; it takes no memory yet
    return settings


def shared_out(buffer_size: int, num_shards: int, num_workers: int) -> list[int]:
    """The capacity of each shard: the part of all places that it has of the workers. So all rows live equally long."""
    shards = min(num_shards, num_workers)
    workers = [len(range(shard, num_workers, shards)) for shard in range(shards)]
    return [max(buffer_size * count // num_workers, 1) for count in workers]


def _check_take_rows(policies: Mapping[str, Policy]) -> None:
    for policy_id, policy in policies.items():
        if policy.replayed is not None:
            raise ConfigError(
                "A policy that learns from sequences, where shards draw single rows.",
                where=f"policy {policy_id!r}, class {type(policy).__name__}",
                got=policy.replayed,
                expected="one that learns from single rows",
                fix="use a model without memory, or SyncReplayOptimizer",
            )
