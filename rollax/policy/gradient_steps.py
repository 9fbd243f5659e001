"""`GradientSteps`: the gradient steps of an update in one compiled call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rollax.batch import Columns
from rollax.core.runtime import StaticArgument, note_trace
from rollax.policy.checks import misshapen_statistic
from rollax.policy.devices import Devices, OneFetch
from rollax.policy.update_plan import UpdatePlan, part_of, rate_of


@runtime_checkable
class Objective(Protocol):
    """What gradient steps minimize, and by which optimizer; hashable, because equal objectives share compiled steps."""

    @property
    def optimizer(self) -> Any:
        """An Optax optimizer without learning rate: a gradient step subtracts `lr` times its result.

        `lr` is a coefficient: a number, or one for each part of the model. An `update` that takes extra arguments also
        gets `lr`, for example to project the new parameters.
        """
        ...

    @property
    def plan(self) -> UpdatePlan:
        """How target parameters are updated, which parts make each step, and what ends an update."""
        ...

    def loss(
        self, params: Columns, targets: Columns, extra: Columns, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, tuple[dict, Columns]]:
        """`(loss, (statistics, the new extra))`; the coefficients include `num_updates` and `parts`."""
        ...

    def count_rows(self, batch: Columns, mask: jax.Array) -> jax.Array:
        """The number of rows over which the loss of a microbatch is averaged."""
        ...


class Variables(NamedTuple):
    """All that a gradient step changes; immutable."""

    params: Columns
    extra: Columns  # the model's other state
    targets: Columns | None  # None: equal to the parameters
    optimizer_state: Any
    num_updates: Any  # gradient steps taken so far


def means_of_last_epoch(
    sums: Mapping[str, Any], counts: Mapping[str, Any], *, last: int, per_epoch: int
) -> dict[str, float]:
    """Returns name -> mean in the last epoch that began, over the steps that have the statistic.

    Args:
        sums, counts: as `GradientSteps.run_plan` returns them.
        last: the last minibatch that was computed, counted from 0 over all epochs.
        per_epoch: the number of minibatches of an epoch.
    """
    steps = {**dict.fromkeys(sums, last % per_epoch + 1), **counts}
    return {name: float(total) / int(steps[name]) for name, total in sums.items() if steps[name]}


@dataclass(frozen=True)
class GradientSteps(StaticArgument):
    """Compiled functions of `Variables`. An object has no arrays: equal objects share compiled functions."""

    objective: Objective
    devices: Devices = field(default_factory=Devices)

    __hash__ = StaticArgument.__hash__

    @partial(jax.jit, static_argnums=0)
    def first_state(self, params: Columns) -> Any:
        """The optimizer's state before the first step; without `jit`, JAX would compile operations for every shape."""
        return self.devices.replicated(self.objective.optimizer.init(params))

    @partial(jax.jit, static_argnums=0)
    def update(self, *args: Any) -> tuple[Variables, OneFetch]:
        """See `run_plan`."""
        note_trace(self)
        after, results = self.run_plan(*args)
        return self.devices.replicated((after, OneFetch(results)))

    @partial(jax.jit, static_argnums=0)
    def gradients(self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns) -> Gradients:
        """The gradients of one minibatch."""
        note_trace(self)
        return self.devices.replicated(self._one_gradient(variables, batch, rows, coefficients))

    @partial(jax.jit, static_argnums=0)
    def apply(self, variables: Variables, gradients: Any, lr: Any) -> tuple[Variables, jax.Array]:
        """The variables after a step, and whether it was finite; see `_one_step`."""
        note_trace(self)
        return self.devices.replicated(self._one_step(variables, gradients, lr))

    def run_plan(
        self,
        variables: Variables,
        batch: Columns,
        plan: jax.Array,
        steps: jax.Array,
        per_epoch: jax.Array,
        coefficients: Columns,
    ) -> tuple[Variables, tuple]:
        """The variables after the plan, and `(taken, sums, counts, rows, finite)`.

        - `taken` is the number of gradient steps.
        - `sums` are the statistics, summed over the last epoch that began.
        - `counts` has, for each statistic that only some steps have, the number of these steps in that epoch.
        - `rows` are the statistics by row.
        - `finite` is false if a loss, gradient or new parameter was not finite. The loop then ends. `taken` does not
          count this step. The variables include it, but not if the plan has `stops`. A step that `stops` prevents is
          neither counted nor included.
        """
        # Needed twice, for the shapes of the statistics and inside of the loop.
        one_gradient = jax.jit(self._one_gradient, inline=True)
        expected = jax.eval_shape(one_gradient, variables, batch, plan[0], coefficients)
        shapes = expected.statistics
        capacity, stops = jax.tree.leaves(batch)[0].shape[0], self.objective.plan.stops
        by_row = {name: stat for name, stat in shapes.items() if stat.ndim}  # in the shape of the rows of a step
        for name, stat in by_row.items():
            if stat.shape != plan.shape[1:]:
                raise misshapen_statistic(name, stat.shape, plan.shape[1:])
        columns = {name: jnp.zeros(capacity, stat.dtype) for name, stat in by_row.items()}
        # A sum in half precision stops growing, and a sum of booleans is not a boolean.
        wide = {name: jnp.promote_types(stat.dtype, jnp.float32) for name, stat in shapes.items() if not stat.ndim}
        zeros = {name: jnp.zeros((), dtype) for name, dtype in wide.items()}
        no_steps = {name: jnp.int32(0) for name in expected.found}

        def going_on(carry: tuple) -> jax.Array:
            step, *_, goes_on, _ = carry
            return (step < steps) & goes_on

        def minibatch(carry: tuple) -> tuple:
            step, before, sums, counts, columns, *_ = carry
            rows = plan[step]
            loss, gradients, stats, extra, found = one_gradient(before, batch, rows, coefficients)
            after, fits = self._one_step(before, gradients, coefficients["lr"])
            after = after._replace(extra=extra)
            finite = jnp.isfinite(loss) & fits
            takes_step = finite
            if stops is not None:
                takes_step &= ~stops(stats)
                after = jax.tree.map(lambda new, old: jnp.where(takes_step, new, old), after, before)
            begins = step % per_epoch == 0  # a new epoch: sums start at 0
            # Padding is out of range and dropped, and so are statistics that the step does not have.
            places = {name: jnp.where((rows >= 0) & found.get(name, True), rows, capacity) for name in columns}
            return (
                step + 1,
                after,
                {name: jnp.where(begins, 0, total) + stats[name] for name, total in sums.items()},
                {name: jnp.where(begins, 0, count) + found[name] for name, count in counts.items()},
                {name: column.at[places[name]].set(stats[name], mode="drop") for name, column in columns.items()},
                takes_step,
                finite,
            )

        start = (jnp.int32(0), variables, zeros, no_steps, columns, jnp.array(True), jnp.array(True))
        # A single step needs no loop. A loop first copies all variables: a twentieth of the time of a small update.
        run = minibatch(start) if len(plan) == 1 else lax.while_loop(going_on, minibatch, start)
        step, variables, sums, counts, columns, took_step, finite = run
        return variables, (jnp.where(took_step, step, step - 1), sums, counts, columns, finite)

    def _one_gradient(self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns) -> Gradients:
        """The gradients of the parts of the model that make the step."""
        gradient_without = partial(self._gradient_without, variables, batch, rows, coefficients)
        return by_due_parts(self.objective.plan.every, variables.num_updates, gradient_without)

    def _gradient_without(
        self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns, waiting: frozenset[str]
    ) -> Gradients:
        """The gradients of one minibatch; `waiting` are the parts that, with their state, do not change."""
        params = variables.params
        learned = {name: value for name, value in params.items() if part_of(name) not in waiting}
        now = {**coefficients, "num_updates": variables.num_updates, "parts": frozenset(map(part_of, learned))}

        def loss_of(learned: Columns, *args: Any) -> tuple[jax.Array, tuple[dict, Columns]]:
            return self.objective.loss({**params, **learned}, *args)

        def at_once(extra: Columns, rows: jax.Array) -> tuple[Any, Columns, Columns, jax.Array]:
            some = jax.tree.map(lambda column: column[rows], dict(batch))
            some, mask = self.devices.share_rows((some, (rows >= 0).astype(jnp.float32)))
            (loss, (stats, extra)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                learned, variables.targets, extra, some, mask, now
            )
            by_row = {name: stat for name, stat in stats.items() if jnp.ndim(stat)}
            numbers = {name: stat for name, stat in stats.items() if name not in by_row}
            return (loss, gradients, numbers), by_row, extra, self.objective.count_rows(some, mask)

        if rows.ndim == 1:
            means, by_row, extra, _ = at_once(variables.extra, rows)
        else:
            means, by_row, extra = weighted_mean(at_once, variables.extra, rows)
        loss, gradients, numbers = means
        zeros = {name: jnp.zeros_like(value) for name, value in params.items() if name not in learned}
        kept = {name: value for name, value in variables.extra.items() if part_of(name) in waiting}
        extra = jax.tree.map(_like, {**extra, **kept}, variables.extra)
        return Gradients(loss, {**gradients, **zeros}, {**numbers, **by_row}, extra, {})

    def _one_step(self, variables: Variables, gradients: Any, lr: Any) -> tuple[Variables, jax.Array]:
        """The variables after a step, and whether the norms of the gradient and of the new parameters are finite.

        A gradient whose norm overflows would leave an infinite second moment in Adam, which divides later steps.
        """
        params, extra, targets, optimizer_state, num_updates = variables
        direction: Any
        optimizer = optax.with_extra_args_support(self.objective.optimizer)
        direction, optimizer_state = optimizer.update(gradients, optimizer_state, params, lr=lr)
        params = {name: value - rate_of(lr, name) * direction[name] for name, value in params.items()}
        if self.objective.plan.updated_targets is not None:
            assert targets is not None  # `Learner.everywhere` replaced None by the parameters
            targets = self.objective.plan.updated_targets(targets, params, num_updates + 1)
        after = Variables(params, extra, targets, optimizer_state, num_updates + 1)
        return after, jnp.isfinite(_squared_norm(gradients)) & jnp.isfinite(_squared_norm(params))


def _like(new: Any, old: Any) -> Any:
    """Casts `new` to the shape and dtype of `old`: a model may assign others, such as a mean in float16."""
    if (new.shape, new.dtype) == (old.shape, old.dtype):
        return new
    return jnp.broadcast_to(new, old.shape).astype(old.dtype)


def _squared_norm(arrays: Any) -> Any:
    """A number that is finite only if all elements are."""
    return sum(jnp.vdot(array, array) for array in jax.tree.leaves(arrays))


class Gradients(NamedTuple):
    """The results of one minibatch."""

    loss: jax.Array
    gradients: Columns  # name of a parameter -> gradient; zeros for parts that do not make the step
    statistics: Columns
    extra: Columns  # after the forward pass
    found: Columns  # name of a statistic that only some steps have -> [] whether this step has it


def by_due_parts(
    every: Mapping[str, int], updates_before: Any, version_of: Callable[[frozenset[str]], Gradients]
) -> Gradients:
    """Returns the gradients of the step after `updates_before` other steps.

    The parts that do not make the step are called waiting. A version is compiled for each set of waiting parts; it
    computes no gradients for them.

    Args:
        every: part of the model -> k, for a part that makes only every k-th step.
        updates_before: [] the number of gradient steps so far.
        version_of: `version_of(waiting_parts)` returns the gradients of a step.
    """
    intervals = sorted(set(every.values()) - {1})
    if not intervals:
        return version_of(frozenset())
    # One version for each set of intervals that are not due; each interval is one bit of the version's index.
    versions: list[Callable[[], Gradients]] = []
    for waits in itertools.product((False, True), repeat=len(intervals)):
        waiting = set(itertools.compress(intervals, waits))
        versions.append(partial(version_of, frozenset(part for part in every if every[part] in waiting)))
    found = [jax.eval_shape(version).statistics for version in versions]
    shapes = {name: shape for statistics in found for name, shape in statistics.items()}
    in_all = {name for name in shapes if all(name in statistics for statistics in found)}

    def completed(version: Callable[[], Gradients]) -> Gradients:
        made = version()
        statistics = {
            name: jnp.broadcast_to(made.statistics.get(name, 0), shape.shape).astype(shape.dtype)
            for name, shape in shapes.items()
        }
        present = {name: jnp.array(name in made.statistics) for name in shapes if name not in in_all}
        return made._replace(statistics=statistics, found=present)

    number = 0
    for interval in intervals:
        number = 2 * number + ((updates_before + 1) % interval != 0)
    return lax.switch(number, [partial(completed, version) for version in versions])


Part = Callable[[Any, jax.Array], tuple[Any, Any, Any, jax.Array]]
"""(state, rows) -> (means over the valid rows, numbers by row, state, number of valid rows)."""


def weighted_mean(part: Part, state: Any, rows: jax.Array) -> tuple[Any, Any, Any]:
    """Returns the means over all valid rows of K microbatches, the numbers by row [K, M], and the state.

    The state is that of the last microbatch with valid rows.

    mean = Σ_k n_k · mean_k / Σ_k n_k. Microbatches without valid rows are skipped, even if their means are NaN; if no
    row is valid, the means are 0. `rows` are [K, M] row indices.
    """
    shapes = jax.eval_shape(part, state, rows[0])[0]
    zeros = jax.tree.map(lambda mean: jnp.zeros(mean.shape, jnp.promote_types(mean.dtype, jnp.float32)), shapes)

    def add(carry: tuple[Any, Any, jax.Array], rows: jax.Array) -> tuple[tuple[Any, Any, jax.Array], Any]:
        sums, state, total = carry
        means, by_row, new_state, count = part(state, rows)
        valid = count > 0
        sums = jax.tree.map(lambda total, mean: total + jnp.where(valid, count * mean, 0.0), sums, means)
        state = jax.tree.map(lambda new, old: jnp.where(valid, new, old), new_state, state)
        return (sums, state, total + count), by_row

    (sums, state, total), by_row = lax.scan(add, (zeros, state, jnp.float32(0)), rows)
    return jax.tree.map(lambda value: value / jnp.maximum(total, 1), sums), by_row, state
