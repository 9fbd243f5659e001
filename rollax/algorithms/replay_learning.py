"""`ReplayLearning`: algorithms that learn from replayed transitions, or with memory from replayed sequences."""

from __future__ import annotations

from typing import Any

import jax

from rollax.batch import Columns, SampleBatch
from rollax.models.outputs import Outputs
from rollax.ops.q_learning import sequence_errors
from rollax.policy.algorithm import Algorithm
from rollax.policy.recurrent_columns import RecurrentColumns
from rollax.policy.replayed import TRANSITION, Draw
from rollax.policy.sequence_draw import draw_for


class ReplayLearning(Algorithm):
    """Learns from transitions, or with memory from sequences; its config has the `SequenceFields`."""

    learns_off_policy = True
    reads = TRANSITION

    def replayed(self, memory: RecurrentColumns) -> Draw:
        return draw_for(memory, self.config, stored_state=not self.config.zero_init_states)

    def next_outputs(self, model: Any, batch: Columns) -> Outputs:
        """The outputs for the observation after each row's n steps: `new_obs`, or a later row of the sequence."""
        if SampleBatch.TARGET_ROWS not in batch:
            return self.forward(model, {SampleBatch.OBS: batch[SampleBatch.NEW_OBS]})
        by_row = self.forward(model, batch)._replace(state=())
        return jax.tree.map(lambda output: output[batch[SampleBatch.TARGET_ROWS]], by_row)

    def learned_rows(self, batch: Columns, mask: jax.Array) -> jax.Array:
        """Returns [B], the mask without the rows that a sequence only bootstraps from."""
        return mask * (batch[SampleBatch.WEIGHTS] > 0) if SampleBatch.TARGET_ROWS in batch else mask

    def errors_for_replay(self, errors: jax.Array, mask: jax.Array, batch: Columns) -> jax.Array:
        """Returns the errors that prioritized replay receives: of rows [B], or of the sequences in the batch."""
        if SampleBatch.TARGET_ROWS not in batch:
            return errors
        return sequence_errors(errors, mask, len(batch[SampleBatch.STATE_IN][0]), eta=self.config.priority_eta)
