"""`ReplayShard`: a part of what is kept to be learned from, in whatever process it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.replay.uniform import UniformReplay
from rollax.state import generator_state, section

BufferOfSize = Callable[[int], UniformReplay]
"""Makes a buffer of so many slots. It travels to the buffer's process."""
Errors = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Policy id -> `(indices, errors)` of what was drawn, as `update_priorities` takes them."""


class Contents(NamedTuple):
    """What a shard holds.

    Args:
        rows: policy id -> transitions.
        priorities: policy id -> the sum of what they are drawn in proportion to.
        nbytes: buffer -> the memory that it takes once it is full.
    """

    rows: dict[str, int]
    priorities: dict[str, float]
    nbytes: dict[str, int]


@dataclass(frozen=True)
class ShardSettings:
    """What the shards of one run are made with.

    Args:
        buffers: policy id -> makes its buffer.
        capacities: of the buffers of each shard.
        batch_sizes: policy id -> rows of one update.
        beta: of prioritized replay, see `PrioritizedReplay`.
        seed: of the draws.
    """

    buffers: Mapping[str, BufferOfSize]
    capacities: Sequence[int]
    batch_sizes: Mapping[str, int]
    beta: float
    seed: int | None


class ReplayShard:
    """A buffer for each policy that learns, filled with fragments of some of the workers.

    Args:
        settings: of all shards.
        index: which of them it is, from 1.
        generation: shards of this index that there were before; it draws other random numbers than they did.
    """

    def __init__(self, settings: ShardSettings, index: int, generation: int = 0) -> None:
        capacity = settings.capacities[index - 1]
        self.buffers = {policy_id: make(capacity) for policy_id, make in settings.buffers.items()}
        self._batch_sizes, self._beta = settings.batch_sizes, settings.beta
        self._seed = None if settings.seed is None else (settings.seed, index, generation)
        self._rng = np.random.default_rng(self._seed)

    def add(self, batch: MultiAgentBatch) -> Contents:
        """Keeps the rows of a fragment, over the oldest ones."""
        for policy_id, buffer in self.buffers.items():
            rows = batch.get(policy_id)
            if rows is not None and rows.count:
                buffer.add(rows)
        return self._contents()

    def draw(self, updates: int, errors: Sequence[Errors] = ()) -> tuple[dict[str, SampleBatch], Contents]:
        """What some updates are to learn from, by policy; a policy of which nothing is kept is missing.

        Args:
            updates: how many.
            errors: that rows drawn before were learned from with; they count for this draw already.
        """
        self.update_priorities(errors)
        drawn = {
            policy_id: _drawn(buffer, updates * self._batch_sizes[policy_id], self._rng, self._beta)
            for policy_id, buffer in self.buffers.items()
            if len(buffer)
        }
        return drawn, self._contents()

    def update_priorities(self, errors: Sequence[Errors]) -> None:
        """Takes in the errors that rows drawn before were learned from with."""
        for by_policy in errors:
            for policy_id, (indices, values) in by_policy.items():
                self.buffers[policy_id].update_priorities(indices, values)

    def get_state(self) -> dict[str, Any]:
        """All that is kept, and how far the draws have come, as arrays and values that JSON can hold."""
        buffers = {policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()}
        return {"buffers": buffers, "rng": self._rng.bit_generator.state}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses what `set_state` would refuse; nothing is changed.

        Raises:
            CheckpointError: it does not fit a buffer of this shard.
            ConfigError: a buffer is larger than the memory.
        """
        check_states(self.buffers, section(state, "buffers", "replay shard"))
        generator_state(state, "rng", "replay shard", self._rng)

    def set_state(self, state: Mapping[str, Any]) -> Contents:
        """Takes over what `get_state` of a shard returned, for the policies that learn here; see `check_state`."""
        set_states(self.buffers, state["buffers"])
        self._rng.bit_generator.state = state["rng"]
        return self._contents()

    def empty(self) -> Contents:
        """Nothing is kept any more; it is as if it had just been made."""
        set_states(self.buffers, {})
        self._rng = np.random.default_rng(self._seed)
        return self._contents()

    def _contents(self) -> Contents:
        return Contents(
            {policy_id: len(buffer) for policy_id, buffer in self.buffers.items()},
            {policy_id: buffer.total_priority for policy_id, buffer in self.buffers.items()},
            {buffer.where: buffer.nbytes for buffer in self.buffers.values()},
        )


def check_states(buffers: Mapping[str, UniformReplay], states: Mapping[str, Any]) -> None:
    """Refuses what `set_states` would refuse; nothing is changed.

    Raises:
        CheckpointError: a state does not fit its buffer.
        ConfigError: a buffer is larger than the memory.
    """
    for policy_id, buffer in buffers.items():
        buffer.check_state(section({policy_id: {}, **states}, policy_id, buffer.where))


def set_states(buffers: Mapping[str, UniformReplay], states: Mapping[str, Any]) -> None:
    """Gives each policy's buffer its state; a buffer without one is emptied, a state without a buffer left out.

    Args:
        buffers: policy id -> buffer.
        states: policy id -> what `get_state` of its buffer returned.
    """
    for policy_id, buffer in buffers.items():
        buffer.set_state(states.get(policy_id, {}))


def _drawn(buffer: UniformReplay, count: int, rng: np.random.Generator, beta: float) -> SampleBatch:
    drawn = buffer.sample(count, rng, beta=beta)
    if SampleBatch.PRIORITIES in drawn:
        del drawn[SampleBatch.PRIORITIES]  # those that the rows began with: nobody learns from them
    return drawn
