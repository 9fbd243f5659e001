"""`CompiledMemory`: the memory of a policy inside a compiled loop, with the same columns as the memory on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from rollax import trees
from rollax.batch import SampleBatch
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.slots import initial_memory
from rollax.evaluation.trajectories import Inputs


class CompiledMemory:
    """The functions of a `SlotMemory`, traced by JAX; without columns where the policy has no memory.

    Args:
        runner: the policy.
        rows: N, the number of trajectories that run at a time.
    Attributes:
        initial: [N, ...] the columns at the start of trajectories.
    """

    def __init__(self, runner: PolicyRunner, rows: int) -> None:
        self._runner = runner
        initial, stored = initial_memory(runner)
        self._stored = {name: initial[name] for name in stored}
        self.initial: Inputs = trees.tree_map(lambda row: jnp.repeat(jnp.asarray(row)[None], rows, axis=0), initial)

    def after(self, actions: trees.Tree, states: Sequence[Any], rewards: Any) -> Inputs:
        """The columns after N decisions and the rewards that followed, if the trajectories continue."""
        after = {
            SampleBatch.STATE_IN: tuple(states),
            SampleBatch.PREV_ACTIONS: self._runner.action_map.received(actions),
            SampleBatch.PREV_REWARDS: self._runner.clipped(rewards),
        }
        return trees.tree_map(lambda column, part: part.astype(column.dtype), self.initial, after)

    def on_host(self, columns: Inputs) -> Inputs:
        """Selects the columns to store, in NumPy with the dtypes of the host: JAX has no int64."""
        return trees.tree_map(lambda row, column: column.astype(row.dtype, copy=False), self._stored, columns)
