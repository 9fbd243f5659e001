"""`ReplayShard`: a part of a replay buffer, for any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.core.stored_values import generator_state, read_dict
from rollax.policy.replayed import Draw
from rollax.replay.uniform import UniformReplay

BufferOfSize = Callable[[int], UniformReplay]
"""A function that can be pickled: capacity -> buffer."""
Errors = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Policy id -> `(indices, errors)` of drawn rows, for `update_priorities`."""


class Contents(NamedTuple):
    """The contents of a shard."""

    rows: dict[str, int]  # policy id -> transitions
    priorities: dict[str, float]  # policy id -> the sum of their priorities
    nbytes: dict[str, int]  # buffer -> bytes of its arrays, unused slots included


@dataclass(frozen=True)
class ShardSettings:
    """The settings of all shards of a run."""

    buffers: Mapping[str, BufferOfSize]  # by policy id
    capacities: Sequence[int]  # by shard: the capacity of each of its buffers
    draws: Mapping[str, Draw]  # by policy id
    batch_sizes: Mapping[str, int]  # policy id -> transitions, or sequences, of one update
    beta: float  # β of prioritized replay
    seed: int | None  # the seed of the draws


class ReplayShard:
    """A buffer for each policy that learns, with the fragments of some of the workers.

    `index` counts from 1. `generation` is the number of earlier shards with this index; each generation draws different
    random numbers.
    """

    def __init__(self, settings: ShardSettings, index: int, generation: int = 0) -> None:
        capacity = settings.capacities[index - 1]
        self.buffers = {policy_id: make(capacity) for policy_id, make in settings.buffers.items()}
        self._draws, self._batch_sizes, self._beta = settings.draws, settings.batch_sizes, settings.beta
        self._seed = None if settings.seed is None else (settings.seed, index, generation)
        self._rng = np.random.default_rng(self._seed)

    def add(self, batch: MultiAgentBatch) -> Contents:
        """Stores the rows of a fragment, over the oldest rows."""
        for policy_id, buffer in self.buffers.items():
            if policy_id in batch:
                buffer.add(batch[policy_id])
        return self._contents()

    def draw(self, updates: int) -> tuple[dict[str, SampleBatch], Contents]:
        """The rows of `updates` updates, by policy; a policy without rows is missing."""
        drawn = {}
        for policy_id, buffer in self.buffers.items():
            if len(buffer):
                count, draw = updates * self._batch_sizes[policy_id], self._draws[policy_id]
                rows = buffer.sample(count, self._rng, beta=self._beta, draw=draw)
                rows.pop(SampleBatch.PRIORITIES, None)  # initial priorities, which learning does not read
                drawn[policy_id] = rows
        return drawn, self._contents()

    def update_priorities(self, errors: Errors) -> Contents:
        for policy_id, (indices, values) in errors.items():
            self.buffers[policy_id].update_priorities(indices, values)
        return self._contents()

    def get_state(self) -> dict[str, Any]:
        buffers = {policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()}
        return {"buffers": buffers, "rng": self._rng.bit_generator.state}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises the errors of `set_state` for this state; nothing is changed. See `check_states`."""
        check_states(self.buffers, read_dict(state, "buffers", "replay shard"))
        generator_state(state, "rng", "replay shard", self._rng)

    def set_state(self, state: Mapping[str, Any]) -> Contents:
        """Restores what `get_state` of a shard returned, for the policies that learn here; see `check_state`."""
        set_states(self.buffers, state["buffers"])
        self._rng.bit_generator.state = state["rng"]
        return self._contents()

    def empty(self) -> Contents:
        """Returns to the state of a new shard."""
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
    """Raises the errors of `set_states` for these states; see `UniformReplay.check_state`."""
    for policy_id, buffer in buffers.items():
        buffer.check_state(read_dict({policy_id: {}, **states}, policy_id, buffer.where))


def set_states(buffers: Mapping[str, UniformReplay], states: Mapping[str, Any]) -> None:
    """Restores the buffer of each policy; a buffer without a state is emptied, and a state without a buffer skipped."""
    for policy_id, buffer in buffers.items():
        buffer.set_state(states.get(policy_id, {}))
