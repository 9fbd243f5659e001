"""Epochs × minibatches as one compiled call, for any loss, on all devices of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from rollax import trees
from rollax.errors import CheckpointError, NonFiniteError
from rollax.policy.accumulation import weighted_mean
from rollax.policy.devices import Devices
from rollax.policy.learning import MinibatchPlan
from rollax.policy.split_model import part_of

Columns = Mapping[str, Any]
Loss = Callable[[Columns, Columns, Columns, Columns, jax.Array, Columns], tuple[jax.Array, tuple[dict, Columns]]]
"""(params, targets, extra, batch, mask, coefficients) -> (loss, (statistics, extra)).

Among the coefficients is `num_updates`, the gradient steps taken before this one."""
UpdatedTargets = Callable[[Columns, Columns, jax.Array], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], jax.Array]
"""Statistics of a minibatch -> [] whether the update ends before the gradient step of this minibatch."""


class Variables(NamedTuple):
    """All that a gradient step changes."""

    params: Columns
    extra: Columns
    targets: Columns
    optimizer_state: Any


class Update(NamedTuple):
    """What an update leaves behind: donation has used up the arrays before it.

    Args:
        params: the parameters, after as many gradient steps as went well.
        extra: the model's other state.
        statistics: means over the last epoch that began; the minibatch that ended the update counts too.
        rows: name -> [capacity] those statistics that are columns, as each row's last gradient step found them.
        error: what stopped it before the end of the plan; None if nothing did.
    """

    params: Columns
    extra: Columns
    statistics: dict[str, float]
    rows: dict[str, np.ndarray]
    error: NonFiniteError | None


def _count(batch: Columns, mask: jax.Array) -> jax.Array:
    return mask.sum()


class Learner:
    """Holds the optimizer's state and the target parameters, and the compiled functions that use them.

    With several devices every minibatch is shared out among them, and all else is on each of them. Parameters come and
    go on the first one, where they are used for acting.

    Args:
        loss: a pure function of arrays.
        optimizer: gives the direction; the coefficient `lr` scales it: a number, or one for each part of the model.
        params: the parameters that it starts from.
        updated_targets: a pure function that moves the target parameters; None where there are none.
        stops: a pure function that ends an update early; None: every update runs its whole plan.
        count_rows: (batch, mask) -> the number of rows that the loss of a microbatch is the mean of.
        row_statistics: the loss's statistics that are columns; not to be had where a step has microbatches.
        devices: where it learns.
    Attributes:
        num_updates: gradient steps taken so far.
        targets: name -> target parameter; None until they are first used, when they are copies of the parameters.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: optax.GradientTransformation,
        params: Columns,
        *,
        updated_targets: UpdatedTargets | None = None,
        stops: StopsUpdate | None = None,
        count_rows: Callable[[Columns, jax.Array], jax.Array] = _count,
        row_statistics: Sequence[str] = (),
        devices: Devices | None = None,
    ) -> None:
        self._loss, self._optimizer = loss, optimizer
        self._updated_targets, self._count_rows, self._stops = updated_targets, count_rows, stops
        self._row_statistics = tuple(row_statistics)
        self.devices = Devices() if devices is None else devices
        # Compiled as a whole: op by op it would compile a tiny program for every shape.
        init = self.devices.compiled(optimizer.init)
        self.optimizer_state = init(self.devices.everywhere(dict(params)))
        self.targets: Columns | None = None
        self.num_updates = 0
        self._update = self.devices.compiled(self._run_plan, donated=0)
        self._gradients = self.devices.compiled(self._one_gradient)
        self._apply = self.devices.compiled(self._one_step, donated=0)
        self._copied = self.devices.compiled(lambda arrays: jax.tree.map(jnp.copy, arrays))

    def functions(self) -> Sequence[Any]:
        """The compiled functions."""
        return self._update, self._gradients, self._apply

    def learn(
        self, params: Columns, extra: Columns, batch: Columns, plan: MinibatchPlan, coefficients: Columns, where: str
    ) -> Update:
        """Runs the plan until `stops` ends it or a loss or gradient is not finite; the arrays passed in are used up."""
        columns, plan = self._placed(batch, plan)
        variables = self._variables(params, extra)
        per_epoch = plan.steps - plan.last_epoch
        numbers = plan.steps, per_epoch, self.num_updates
        variables, sums, rows, done, finite = self._update(variables, columns, plan.rows, *numbers, coefficients)
        self.optimizer_state, self.targets = variables.optimizer_state, variables.targets
        self.num_updates += int(done)
        params, extra = self.devices.first((variables.params, variables.extra))
        if not finite:
            error = self._diagnose(variables, columns, plan.rows[int(done)], coefficients, where)
            return Update(params, extra, {}, {}, error)
        last = min(int(done), plan.steps - 1)  # the minibatch looked at last: without a step where it ended the update
        counted = last % per_epoch + 1
        means = {name: float(total) / counted for name, total in jax.device_get(sums).items()}
        return Update(params, extra, means, {name: np.asarray(column) for name, column in rows.items()}, None)

    def gradients(
        self, params: Columns, extra: Columns, batch: Columns, plan: MinibatchPlan, coefficients: Columns
    ) -> tuple[Columns, dict[str, Any]]:
        """Gradients by name and statistics of the plan's first minibatch."""
        columns, plan = self._placed(batch, plan)
        now = self._counted(coefficients)
        _, gradients, stats, _ = self._gradients(self._variables(params, extra), columns, plan.rows[0], now)
        return gradients, {name: value.item() if value.ndim == 0 else value for name, value in _on_host(stats).items()}

    def apply(self, params: Columns, gradients: Columns, lr: Any, where: str) -> Columns:
        """The parameters after one step; those passed in are used up.

        Raises:
            NonFiniteError: a gradient is not finite; nothing is changed.
        """
        bad = [name for name, value in gradients.items() if not np.isfinite(value).all()]
        if bad:
            raise _not_finite(where, self.num_updates, f"the gradient of {bad[0]}")
        variables = self._apply(
            self._variables(params, {}), self.devices.everywhere(dict(gradients)), lr, self.num_updates + 1
        )
        self.optimizer_state, self.targets = variables.optimizer_state, variables.targets
        self.num_updates += 1
        return self.devices.first(variables.params)

    def targets_of(self, params: Columns) -> Columns:
        """The target parameters; where there are none yet, copies of these; empty where nothing needs them."""
        targets = self.targets
        if targets is None:
            targets = {} if self._updated_targets is None else self._copied(self.devices.everywhere(dict(params)))
            self.targets = targets
        return targets

    def set_targets(self, targets: Columns) -> None:
        """Target parameters from elsewhere; the arrays are used up by the next update."""
        self.targets = self.devices.everywhere(dict(targets))

    def _variables(self, params: Columns, extra: Columns) -> Variables:
        targets = self.targets_of(params)
        params, extra = self.devices.everywhere((dict(params), dict(extra)))
        return Variables(params, extra, targets, self.optimizer_state)

    def _counted(self, coefficients: Columns) -> Columns:
        """What the loss of the next gradient step is told."""
        return {**coefficients, "num_updates": self.num_updates}

    def _placed(self, batch: Columns, plan: MinibatchPlan) -> tuple[Columns, MinibatchPlan]:
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
        num_updates: jax.Array,
        coefficients: Columns,
    ) -> tuple:
        first = {**coefficients, "num_updates": num_updates}
        shapes = jax.eval_shape(self._one_gradient, variables, batch, plan[0], first)[2]
        capacity = jax.tree.leaves(batch)[0].shape[0]
        columns = {name: jnp.zeros(capacity, shapes[name].dtype) for name in self._row_statistics}
        zeros = {name: jnp.zeros(stat.shape, stat.dtype) for name, stat in shapes.items() if name not in columns}

        def going_on(carry: tuple) -> jax.Array:
            step, *_, goes_on, _ = carry
            return (step < steps) & goes_on

        def minibatch(carry: tuple) -> tuple:
            step, variables, sums, columns, *_ = carry
            rows = plan[step]
            now = {**coefficients, "num_updates": num_updates + step}
            loss, gradients, stats, extra = self._one_gradient(variables, batch, rows, now)
            # One number tells whether all gradients are finite: their squared norm.
            norm = sum(jnp.vdot(gradient, gradient) for gradient in jax.tree.leaves(gradients))
            finite = jnp.isfinite(loss) & jnp.isfinite(norm)
            takes_step = finite if self._stops is None else finite & ~self._stops(stats)
            new = self._one_step(variables, gradients, coefficients["lr"], num_updates + step + 1)
            begins = step % per_epoch == 0  # an epoch, and the sums with it
            places = jnp.where(rows >= 0, rows, capacity)  # those of padding are outside, and dropped
            return (
                step + takes_step,
                jax.tree.map(lambda new, old: jnp.where(takes_step, new, old), new._replace(extra=extra), variables),
                {name: jnp.where(begins, 0, total) + stats[name] for name, total in sums.items()},
                {name: column.at[places].set(stats[name], mode="drop") for name, column in columns.items()},
                takes_step,
                finite,
            )

        start = (jnp.int32(0), variables, zeros, columns, jnp.array(True), jnp.array(True))
        done, variables, sums, columns, _, finite = lax.while_loop(going_on, minibatch, start)
        return variables, sums, columns, done, finite

    def _one_gradient(
        self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, Any, dict, Columns]:
        """Loss, gradients, statistics and the model's other state of one minibatch."""

        def at_once(extra: Columns, rows: jax.Array) -> tuple[Any, Columns, jax.Array]:
            some = jax.tree.map(lambda column: column[rows], dict(batch))
            some, mask = self.devices.share_rows((some, (rows >= 0).astype(jnp.float32)))
            (loss, (stats, extra)), gradients = jax.value_and_grad(self._loss, has_aux=True)(
                variables.params, variables.targets, extra, some, mask, coefficients
            )
            return (loss, gradients, stats), extra, self._count_rows(some, mask)

        if rows.ndim == 1:
            means, extra, _ = at_once(variables.extra, rows)
        else:
            means, extra = weighted_mean(at_once, variables.extra, rows)
        return *means, extra

    def _one_step(self, variables: Variables, gradients: Any, lr: Any, num_updates: Any) -> Variables:
        params, _, targets, optimizer_state = variables
        direction: Any
        direction, optimizer_state = self._optimizer.update(gradients, optimizer_state, params)
        params = {name: value - _rate(lr, name) * direction[name] for name, value in params.items()}
        if self._updated_targets is not None:
            targets = self._updated_targets(targets, params, num_updates)
        return Variables(params, variables.extra, targets, optimizer_state)

    def _diagnose(
        self, variables: Variables, batch: Columns, rows: Any, coefficients: Columns, where: str
    ) -> NonFiniteError:
        """Repeats the failed step, whose weights are untouched, to say which tensor it was."""
        loss, gradients, stats, _ = self._gradients(variables, batch, rows, self._counted(coefficients))
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not np.isfinite(loss):
            terms = [name for name, value in stats.items() if name != "total_loss" and not np.isfinite(value).all()]
            bad = [f"the loss ({', '.join(terms) or 'total_loss'})", *bad]
        columns = [
            name
            for name, column in batch.items()
            if any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in jax.tree.leaves(column))
        ]
        return _not_finite(where, self.num_updates, ", ".join(bad[:3]) or "the norm of all gradients", columns)

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """The optimizer's state by name."""
        paths, _ = jax.tree_util.tree_flatten_with_path(self.optimizer_state)
        return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in paths}

    def set_optimizer_arrays(self, arrays: Mapping[str, np.ndarray], where: str) -> None:
        """Takes over what `optimizer_arrays` returned.

        Raises:
            CheckpointError: the arrays are those of another optimizer.
        """
        paths, tree = jax.tree_util.tree_flatten_with_path(self.optimizer_state)
        expected = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
        fits = arrays.keys() == expected.keys() and all(np.shape(arrays[n]) == expected[n].shape for n in expected)
        if not fits:
            raise CheckpointError(
                "The state of another optimizer.",
                where=where,
                got=sorted(arrays),
                expected=sorted(expected),
                fix="restore with the policy class and the model that the checkpoint was made with",
            )
        leaves = [jnp.array(arrays[name], leaf.dtype) for name, leaf in expected.items()]
        self.optimizer_state = self.devices.everywhere(jax.tree.unflatten(tree, leaves))


def _rate(lr: Any, name: str) -> Any:
    """The step size of one parameter."""
    return lr[part_of(name)] if isinstance(lr, Mapping) else lr


def _on_host(arrays: Columns) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in jax.device_get(dict(arrays)).items()}


def _not_finite(where: str, step: int, tensor: str, columns: Sequence[str] = ()) -> NonFiniteError:
    return NonFiniteError(
        "Learning stopped: a loss or gradient is not finite. The weights are those before this gradient step.",
        where=f"{where}, gradient step {step}: {tensor}",
        got="NaN or infinity" + (f"; so are the batch's columns {list(columns)}" if columns else ""),
        expected="finite numbers",
        fix="lower lr, set grad_clip, normalize observations (observation_filter='MeanStdFilter') or clip rewards",
    )
