"""`AlgorithmObjective`: the loss of an algorithm as a function of arrays, with its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.core.runtime import StaticArgument, note_trace
from rollax.policy.checks import checked_loss, td_error_of
from rollax.policy.gradient_transforms import checked_optimizer, clipped
from rollax.policy.split_model import SplitModel
from rollax.policy.update_plan import UpdatePlan, part_of

if TYPE_CHECKING:
    from rollax.policy.algorithm import Algorithm


@dataclass(frozen=True)
class AlgorithmObjective(StaticArgument):
    """An algorithm's loss and optimizer, for `GradientSteps`. It has no arrays: equal ones share compiled functions.

    Attributes:
        algorithm: has the loss, the targets, the plan and the optimizer.
        split: the model without its arrays.
        state_parts: the number of arrays in the model's recurrent state; None if the policy learns from single rows.
    """

    algorithm: Algorithm
    split: SplitModel
    state_parts: int | None

    __hash__ = StaticArgument.__hash__

    @property
    def plan(self) -> UpdatePlan:
        return self.algorithm.plan

    @cached_property
    def optimizer(self) -> Any:
        algorithm = self.algorithm
        optimizer = checked_optimizer(algorithm.make_optimizer(), algorithm.label)
        each_part = isinstance(algorithm.learning_rates(0.0), Mapping)
        return clipped(optimizer, algorithm.config.grad_clip, each_part=each_part)

    def loss(
        self, params: Columns, targets: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, tuple[dict, Columns]]:
        algorithm, split = self.algorithm, self.split
        batch, mask = self._as_rows(batch, mask)
        if self.plan.updated_targets is not None:
            # Each model has its own random stream, so that random targets, as with dropout, are independent of outputs.
            fixed = split.merge(lax.stop_gradient(dict(params)), extra, noise_seed=np.uint32(1))
            target_model = split.merge(targets, extra, noise_seed=np.uint32(2))
            batch = {**batch, **algorithm.targets(fixed, target_model, batch, mask, coefficients)}
        model = split.merge(params, extra, learning=True)
        out = algorithm.forward(model, batch)
        loss, statistics = checked_loss(algorithm, jax.Array, model, out, batch, mask, coefficients)
        return loss, ({**statistics, "total_loss": loss}, split.extra_of(model))

    def count_rows(self, batch: Columns, mask: jax.Array) -> jax.Array:
        return self._as_rows(batch, mask)[1].sum()

    @partial(jax.jit, static_argnums=0)
    def td_errors(
        self, params: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> jax.Array:
        """[B] the statistic `td_error` of the loss, with the parameters in place of the target parameters."""
        note_trace(self)
        now = {**coefficients, "parts": frozenset(map(part_of, params))}
        statistics = self.loss(params, params, extra, batch, mask, now)[1][0]
        return td_error_of(statistics, len(mask), f"{self.algorithm.label}, td_errors")

    def _as_rows(self, batch: Columns, mask: jax.Array) -> tuple[Columns, jax.Array]:
        """Turns sequences, if the policy learns from them, into rows, and drops the exploration state in `state_in`."""
        if self.state_parts is None:
            return batch, mask
        from rollax.policy.sequences_as_rows import as_rows  # loaded only where it is used

        batch, mask = as_rows(batch, mask)
        return {**batch, SampleBatch.STATE_IN: batch[SampleBatch.STATE_IN][: self.state_parts]}, mask
