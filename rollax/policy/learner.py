"""`Learner`: epochs × minibatches as one compiled call, for any loss, on all devices of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollax import trees
from rollax.errors import CheckpointError, NonFiniteError
from rollax.policy.finite import not_finite
from rollax.policy.minibatches import Minibatches
from rollax.policy.own_state import arrays_in, restored
from rollax.policy.update_plan import StopsUpdate, UpdatedTargets, part_of
from rollax.policy.weighted_mean import weighted_mean

Columns = Mapping[str, Any]
Loss = Callable[[Columns, Columns, Columns, Columns, jax.Array, Columns], tuple[jax.Array, tuple[dict, Columns]]]
"""(params, targets, extra, batch, mask, coefficients with `num_updates`) -> (loss, (statistics, extra))."""


class Devices:
    """Places arrays on devices, by default all local ones; with a single device it does nothing."""

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        devices = jax.local_devices() if devices is None else devices
        self.count = len(devices)
        mesh = Mesh(np.array(devices), ("rows",))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_row = NamedSharding(mesh, PartitionSpec("rows"))

    def everywhere(self, tree: Any) -> Any:
        """Copies the arrays to each device."""
        return tree if self.count == 1 else jax.device_put(tree, self._everywhere)

    def by_row(self, tree: Any) -> Any:
        """Divides the rows equally among the devices; their number is a multiple of `count`."""
        return tree if self.count == 1 else jax.device_put(tree, self._by_row)

    def share_rows(self, tree: Any) -> Any:
        """`by_row` inside a compiled function."""
        return tree if self.count == 1 else lax.with_sharding_constraint(tree, self._by_row)

    def first(self, tree: Any) -> Any:
        """The arrays on the first device, without a copy."""
        if self.count == 1:
            return tree
        return jax.tree.map(lambda leaf: leaf.addressable_shards[0].data, tree)

    def compiled(self, function: Callable[..., Any]) -> Any:
        """Compiles a function; its results are on all devices."""
        return jax.jit(function) if self.count == 1 else jax.jit(function, out_shardings=self._everywhere)


class Variables(NamedTuple):
    """All that a gradient step changes; immutable."""

    params: Columns
    extra: Columns  # the model's other state
    targets: Columns | None  # None: equal to the parameters
    optimizer_state: Any
    num_updates: Any  # gradient steps taken so far


class Update(NamedTuple):
    """The result of an update."""

    statistics: dict[str, float]  # means over the last epoch that began, with the minibatch that ended the update
    rows: dict[str, np.ndarray]  # name -> [capacity] statistics by row, from each row's last gradient step
    error: NonFiniteError | None  # the reason why the update stopped before the end of the plan


def _count(batch: Columns, mask: jax.Array) -> jax.Array:
    return mask.sum()


class Learner:
    """Holds the variables that gradient steps change, and the compiled functions that change them.

    An update is one compiled call, whose results are assigned at once: an interrupt or a lack of memory leaves the
    variables unchanged. Several devices divide each minibatch and have a copy of the variables each; parameters for
    acting are on the first one.

    Args:
        optimizer: gives the direction; the coefficient `lr` scales it: a number, or one for each part of the model.
        count_rows: (batch, mask) -> the number of rows over which the loss of a microbatch is averaged.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: optax.GradientTransformation,
        params: Columns,
        extra: Columns,
        *,
        updated_targets: UpdatedTargets | None = None,
        stops: StopsUpdate | None = None,
        count_rows: Callable[[Columns, jax.Array], jax.Array] = _count,
        devices: Devices | None = None,
    ) -> None:
        self._loss, self._optimizer = loss, optimizer
        self._updated_targets, self._count_rows, self._stops = updated_targets, count_rows, stops
        self.devices = Devices() if devices is None else devices
        # Compiled as a whole; op by op it would compile a program for every shape.
        optimizer_state = self.devices.compiled(optimizer.init)(self.devices.everywhere(dict(params)))
        params, extra = self.devices.first((dict(params), dict(extra)))
        self.variables = Variables(params, extra, None, optimizer_state, 0)
        self._update = self.devices.compiled(self._run_plan)
        self._gradients = self.devices.compiled(self._one_gradient)
        self._apply = self.devices.compiled(self._one_step)

    def functions(self) -> Sequence[Any]:
        """The compiled functions."""
        return self._update, self._gradients, self._apply

    @property
    def num_updates(self) -> int:
        """Gradient steps taken so far."""
        return self.variables.num_updates

    @property
    def has_targets(self) -> bool:
        """Whether there are target parameters."""
        return self._updated_targets is not None

    @property
    def targets(self) -> Columns:
        """Name -> target parameter, the parameters before the first update; empty if there are none."""
        if self._updated_targets is None:
            return {}
        return self.variables.params if self.variables.targets is None else self.variables.targets

    @np.errstate(over="ignore")  # a step size beyond float32 makes the new parameters infinite
    def learn(self, batch: Columns, plan: Minibatches, coefficients: Columns, where: str) -> Update:
        """Runs the plan until `stops` ends it, or a loss, gradient or new parameter is not finite."""
        columns, plan = self._placed(batch, plan)
        before, per_epoch = self._everywhere(), plan.steps - plan.last_epoch
        after, sums, rows, finite = self._update(before, columns, plan.rows, plan.steps, per_epoch, coefficients)
        # The last minibatch; it made no step if it ended the update.
        last = min(int(after.num_updates) - int(before.num_updates), plan.steps - 1)
        if finite:
            counted = last % per_epoch + 1
            means = {name: float(total) / counted for name, total in jax.device_get(sums).items()}
            update = Update(means, {name: np.asarray(column) for name, column in rows.items()}, None)
        else:
            update = Update({}, {}, self._diagnose(after, columns, plan.rows[last], coefficients, where))
        self._take_over(after)
        return update

    def gradients(self, batch: Columns, plan: Minibatches, coefficients: Columns) -> tuple[Columns, dict[str, Any]]:
        """Gradients by name and statistics of the plan's first minibatch."""
        columns, plan = self._placed(batch, plan)
        _, gradients, stats, _ = self._gradients(self._everywhere(), columns, plan.rows[0], coefficients)
        on_host = {name: np.asarray(value) for name, value in jax.device_get(stats).items()}
        return gradients, {name: value.item() if value.ndim == 0 else value for name, value in on_host.items()}

    @np.errstate(over="ignore")  # as in `learn`
    def apply(self, gradients: Columns, lr: Any, where: str) -> None:
        """One step; raises NonFiniteError, without a change, if a gradient or new parameter is not finite."""
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not bad:
            after, finite = self._apply(self._everywhere(), self.devices.everywhere(dict(gradients)), lr)
            if finite:
                self._take_over(after)
                return
            bad = _too_large(after.params)
        raise not_finite(where, self.num_updates, bad[0])

    def set_targets(self, targets: Columns) -> None:
        """Sets the target parameters."""
        self.variables = self.variables._replace(targets=self.devices.everywhere(dict(targets)))

    def _everywhere(self) -> Variables:
        """The variables as arguments of the compiled functions."""
        variables = self.variables._replace(targets=self.targets, num_updates=np.int32(self.num_updates))
        return self.devices.everywhere(variables)

    def _take_over(self, after: Variables) -> None:
        """Sets the variables that a compiled function has returned."""
        params, extra = self.devices.first((after.params, after.extra))
        # `int` waits for the device: errors there are raised before anything has changed.
        self.variables = after._replace(params=params, extra=extra, num_updates=int(after.num_updates))

    def _placed(self, batch: Columns, plan: Minibatches) -> tuple[Columns, Minibatches]:
        if self.devices.count == 1:
            return batch, plan
        plan = plan.divisible(self.devices.count)
        return self.devices.by_row(trees.pad(dict(batch), plan.capacity)), plan

    def _run_plan(
        self,
        variables: Variables,
        batch: Columns,
        plan: jax.Array,
        steps: jax.Array,
        per_epoch: jax.Array,
        coefficients: Columns,
    ) -> tuple:
        shapes = jax.eval_shape(self._one_gradient, variables, batch, plan[0], coefficients)[2]
        capacity = jax.tree.leaves(batch)[0].shape[0]
        # Statistics [B] are kept by row, without microbatches.
        by_row = {name: stat for name, stat in shapes.items() if stat.ndim}
        columns = {name: jnp.zeros(capacity, stat.dtype) for name, stat in by_row.items() if plan.ndim == 2}
        zeros = {name: jnp.zeros((), stat.dtype) for name, stat in shapes.items() if name not in by_row}

        def going_on(carry: tuple) -> jax.Array:
            step, *_, goes_on, _ = carry
            return (step < steps) & goes_on

        def minibatch(carry: tuple) -> tuple:
            step, variables, sums, columns, *_ = carry
            rows = plan[step]
            loss, gradients, stats, extra = self._one_gradient(variables, batch, rows, coefficients)
            new, fits = self._one_step(variables, gradients, coefficients["lr"])
            finite = jnp.isfinite(loss) & jnp.isfinite(_squared_norm(gradients)) & fits
            takes_step = finite if self._stops is None else finite & ~self._stops(stats)
            begins = step % per_epoch == 0  # an epoch, whose sums start at 0
            places = jnp.where(rows >= 0, rows, capacity)  # padding is out of range and dropped
            return (
                step + 1,
                jax.tree.map(lambda new, old: jnp.where(takes_step, new, old), new._replace(extra=extra), variables),
                {name: jnp.where(begins, 0, total) + stats[name] for name, total in sums.items()},
                {name: column.at[places].set(stats[name], mode="drop") for name, column in columns.items()},
                takes_step,
                finite,
            )

        start = (jnp.int32(0), variables, zeros, columns, jnp.array(True), jnp.array(True))
        # A loop copies all variables first, a twentieth of the time of a small update; a single step needs no loop.
        run = minibatch(start) if len(plan) == 1 else lax.while_loop(going_on, minibatch, start)
        _, variables, sums, columns, _, finite = run
        return variables, sums, columns, finite

    def _one_gradient(
        self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, Any, dict, Columns]:
        """Loss, gradients, statistics and the new `extra` of one minibatch."""
        now = {**coefficients, "num_updates": variables.num_updates}

        def at_once(extra: Columns, rows: jax.Array) -> tuple[Any, Columns, jax.Array]:
            some = jax.tree.map(lambda column: column[rows], dict(batch))
            some, mask = self.devices.share_rows((some, (rows >= 0).astype(jnp.float32)))
            (loss, (stats, extra)), gradients = jax.value_and_grad(self._loss, has_aux=True)(
                variables.params, variables.targets, extra, some, mask, now
            )
            return (loss, gradients, stats), extra, self._count_rows(some, mask)

        if rows.ndim == 1:
            means, extra, _ = at_once(variables.extra, rows)
        else:
            means, extra = weighted_mean(at_once, variables.extra, rows)
        return *means, extra

    def _one_step(self, variables: Variables, gradients: Any, lr: Any) -> tuple[Variables, jax.Array]:
        """The variables after a step, and whether the new parameters are finite."""
        params, extra, targets, optimizer_state, num_updates = variables
        direction: Any
        direction, optimizer_state = self._optimizer.update(gradients, optimizer_state, params)
        params = {name: value - _rate(lr, name) * direction[name] for name, value in params.items()}
        if self._updated_targets is not None:
            assert targets is not None  # `_everywhere` has filled them in
            targets = self._updated_targets(targets, params, num_updates + 1)
        after = Variables(params, extra, targets, optimizer_state, num_updates + 1)
        return after, jnp.isfinite(_squared_norm(params))

    def _diagnose(
        self, variables: Variables, batch: Columns, rows: Any, coefficients: Columns, where: str
    ) -> NonFiniteError:
        """Repeats the failed step, to name the tensor that is not finite."""
        loss, gradients, stats, _ = self._gradients(variables, batch, rows, coefficients)
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not np.isfinite(loss):
            terms = [name for name, value in stats.items() if name != "total_loss" and not np.isfinite(value).all()]
            bad = [f"the loss ({', '.join(terms) or 'total_loss'})", *bad]
        bad = bad or _too_large(self._apply(variables, gradients, coefficients["lr"])[0].params)
        columns = [
            name
            for name, column in batch.items()
            if any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in jax.tree.leaves(column))
        ]
        return not_finite(where, int(variables.num_updates), ", ".join(bad[:3]), columns)

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """The optimizer's state by name."""
        return arrays_in(self.variables.optimizer_state)

    def get_state(self) -> dict[str, Any]:
        """Optimizer state, number of gradient steps, and target parameters that are not the parameters."""
        targets = {name: np.array(value) for name, value in (self.variables.targets or {}).items()}
        return {"optimizer": self.optimizer_arrays(), "num_updates": self.num_updates, "targets": targets}

    def set_state(self, arrays: Mapping[str, np.ndarray], num_updates: int, targets: Columns, where: str) -> None:
        """Restores what `get_state` returned; raises CheckpointError if the arrays are of another optimizer."""
        state, expected = self.variables.optimizer_state, self.optimizer_arrays()
        if {n: np.shape(a) for n, a in arrays.items()} != {n: a.shape for n, a in expected.items()}:
            raise CheckpointError(
                "The state of another optimizer.",
                where=where,
                got=sorted(arrays),
                expected=sorted(expected),
                fix="restore with the policy class and the model that the checkpoint was made with",
            )
        state = self.devices.everywhere(restored(state, arrays))
        self.variables = self.variables._replace(optimizer_state=state, num_updates=num_updates)
        if self.has_targets and targets:
            self.set_targets(targets)


def _squared_norm(arrays: Any) -> Any:
    """A number that is finite only if all elements are."""
    return sum(jnp.vdot(array, array) for array in jax.tree.leaves(arrays))


def _too_large(params: Columns) -> list[str]:
    """Names the largest parameter."""
    norms = {name: float(np.linalg.norm(np.asarray(value, np.float64))) for name, value in params.items()}
    largest = max(norms, key=lambda name: np.inf if np.isnan(norms[name]) else norms[name])
    return [f"the new value of {largest}"]


def _rate(lr: Any, name: str) -> Any:
    """The step size of one parameter."""
    return lr[part_of(name)] if isinstance(lr, Mapping) else lr
