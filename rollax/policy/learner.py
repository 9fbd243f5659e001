"""Epochs × minibatches as one compiled call, for any loss, on all devices of the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from rollax import trees
from rollax.errors import CheckpointError, NonFiniteError
from rollax.policy.devices import Devices
from rollax.policy.minibatches import Minibatches, weighted_mean
from rollax.policy.split_model import part_of

Columns = Mapping[str, Any]
Loss = Callable[[Columns, Columns, Columns, Columns, jax.Array, Columns], tuple[jax.Array, tuple[dict, Columns]]]
"""(params, targets, extra, batch, mask, coefficients) -> (loss, (statistics, extra)).

Among the coefficients is `num_updates`, the gradient steps taken before this one."""
UpdatedTargets = Callable[[Columns, Columns, jax.Array], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], jax.Array]
"""Statistics of a minibatch -> [] whether the update ends before the gradient step of this minibatch."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps.

    Args:
        minibatch_size: rows of one gradient step; None: the whole batch.
        epochs: passes over each batch.
        microbatch_size: rows of a gradient step that are on the device at once. The gradient is the mean over the
            microbatches, weighted by their rows. None: all rows at once.
        targets: moves the target parameters after each gradient step; None: there are none.
        stops: ends an update early; None: an update runs all its gradient steps.
    """

    minibatch_size: int | None = None
    epochs: int = 1
    microbatch_size: int | None = None
    targets: UpdatedTargets | None = None
    stops: StopsUpdate | None = None


def periodic_copy(interval: int) -> UpdatedTargets:
    """Targets that become a copy of the parameters every `interval` gradient steps."""

    def updated(targets: Columns, params: Columns, num_updates: jax.Array) -> Columns:
        due = num_updates % interval == 0
        return {name: jnp.where(due, params[name], target) for name, target in targets.items()}

    return updated


def polyak_average(tau: float, parts: Sequence[str], *, interval: int = 1) -> UpdatedTargets:
    """Targets of some parts of the model that become (1 - τ) target + τ parameter.

    Args:
        tau: the Polyak coefficient τ.
        parts: attributes of the model; all other targets stay.
        interval: gradient steps between two moves.
    """

    def updated(targets: Columns, params: Columns, num_updates: jax.Array) -> Columns:
        names = [name for name in targets if part_of(name) in parts]
        newer, older = ({name: arrays[name] for name in names} for arrays in (params, targets))
        moved: Any = optax.incremental_update(newer, older, tau)
        if interval > 1:
            due = num_updates % interval == 0
            moved = {name: jnp.where(due, moved[name], older[name]) for name in names}
        return {**targets, **moved}

    return updated


class Variables(NamedTuple):
    """All that a gradient step changes. None of it is changed in place: an update makes another one of these.

    Args:
        params: name -> parameter.
        extra: name -> the model's other state.
        targets: name -> target parameter; None while they are still the parameters themselves.
        optimizer_state: the optimizer's.
        num_updates: gradient steps taken so far.
    """

    params: Columns
    extra: Columns
    targets: Columns | None
    optimizer_state: Any
    num_updates: Any


class Update(NamedTuple):
    """What an update tells.

    Args:
        statistics: means over the last epoch that began; the minibatch that ended the update counts too.
        rows: name -> [capacity] those statistics that are columns, as each row's last gradient step found them.
        error: what stopped it before the end of the plan; None if nothing did.
    """

    statistics: dict[str, float]
    rows: dict[str, np.ndarray]
    error: NonFiniteError | None


def _count(batch: Columns, mask: jax.Array) -> jax.Array:
    return mask.sum()


class Learner:
    """Holds all that gradient steps change, and the compiled functions that change it.

    An update is one compiled call whose results replace what there was in one assignment. Whatever ends it before, an
    interrupt or a lack of memory, leaves all as it was; whoever holds arrays of before may go on reading them.

    With several devices every minibatch is shared out among them, and all else is on each of them. Parameters lie on
    the first one, where they are used for acting.

    Args:
        loss: a pure function of arrays.
        optimizer: gives the direction; the coefficient `lr` scales it: a number, or one for each part of the model.
        params: the parameters that it starts from.
        extra: the model's other state.
        updated_targets: a pure function that moves the target parameters; None where there are none.
        stops: a pure function that ends an update early; None: every update runs its whole plan.
        count_rows: (batch, mask) -> the number of rows that the loss of a microbatch is the mean of.
        devices: where it learns.
    Attributes:
        variables: what there is now; replaced as a whole.
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
        # Compiled as a whole: op by op it would compile a tiny program for every shape.
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
        """Name -> target parameter: the parameters, until they are first moved; empty where nothing needs them."""
        if self._updated_targets is None:
            return {}
        return self.variables.params if self.variables.targets is None else self.variables.targets

    @np.errstate(over="ignore")  # of a step size that float32 cannot hold: the new parameters show it
    def learn(self, batch: Columns, plan: Minibatches, coefficients: Columns, where: str) -> Update:
        """Runs the plan, until `stops` ends it or a loss, a gradient or a new parameter is not finite."""
        columns, plan = self._placed(batch, plan)
        before, per_epoch = self._everywhere(), plan.steps - plan.last_epoch
        after, sums, rows, finite = self._update(before, columns, plan.rows, plan.steps, per_epoch, coefficients)
        # The minibatch looked at last: without a step where it ended the update.
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
        return gradients, {name: value.item() if value.ndim == 0 else value for name, value in _on_host(stats).items()}

    @np.errstate(over="ignore")  # as in `learn`
    def apply(self, gradients: Columns, lr: Any, where: str) -> None:
        """One step with gradients from here or elsewhere.

        Raises:
            NonFiniteError: a gradient, or a parameter after the step, is not finite; nothing is changed.
        """
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not bad:
            after, finite = self._apply(self._everywhere(), self.devices.everywhere(dict(gradients)), lr)
            if finite:
                self._take_over(after)
                return
            bad = _too_large(after.params)
        raise _not_finite(where, self.num_updates, bad[0])

    def set_targets(self, targets: Columns) -> None:
        """Target parameters from elsewhere."""
        self.variables = self.variables._replace(targets=self.devices.everywhere(dict(targets)))

    def _everywhere(self) -> Variables:
        """The variables as compiled functions take them."""
        variables = self.variables._replace(targets=self.targets, num_updates=np.int32(self.num_updates))
        return self.devices.everywhere(variables)

    def _take_over(self, after: Variables) -> None:
        """What a compiled function has returned holds from here on."""
        params, extra = self.devices.first((after.params, after.extra))
        # Waits for the device: what fails there is raised before anything has changed.
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
        # Statistics [B] are kept by row; microbatches have none.
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
            begins = step % per_epoch == 0  # an epoch, and the sums with it
            places = jnp.where(rows >= 0, rows, capacity)  # those of padding are outside, and dropped
            return (
                step + 1,
                jax.tree.map(lambda new, old: jnp.where(takes_step, new, old), new._replace(extra=extra), variables),
                {name: jnp.where(begins, 0, total) + stats[name] for name, total in sums.items()},
                {name: column.at[places].set(stats[name], mode="drop") for name, column in columns.items()},
                takes_step,
                finite,
            )

        start = (jnp.int32(0), variables, zeros, columns, jnp.array(True), jnp.array(True))
        # A loop begins with a copy of all variables, which costs a twentieth of a small update: one step needs none.
        run = minibatch(start) if len(plan) == 1 else lax.while_loop(going_on, minibatch, start)
        _, variables, sums, columns, _, finite = run
        return variables, sums, columns, finite

    def _one_gradient(
        self, variables: Variables, batch: Columns, rows: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, Any, dict, Columns]:
        """Loss, gradients, statistics and the model's other state of one minibatch."""
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
        """Repeats the failed step, whose weights are untouched, to say which tensor it was."""
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
        return _not_finite(where, int(variables.num_updates), ", ".join(bad[:3]), columns)

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """The optimizer's state by name."""
        paths, _ = jax.tree_util.tree_flatten_with_path(self.variables.optimizer_state)
        return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in paths}

    def optimizer_state_of(self, arrays: Mapping[str, np.ndarray], where: str) -> Any:
        """The state that `optimizer_arrays` returned these of.

        Raises:
            CheckpointError: the arrays are those of another optimizer.
        """
        paths, tree = jax.tree_util.tree_flatten_with_path(self.variables.optimizer_state)
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
        return self.devices.everywhere(jax.tree.unflatten(tree, leaves))


def _squared_norm(arrays: Any) -> Any:
    """One number that tells whether all elements are finite: it is not, unless they are."""
    return sum(jnp.vdot(array, array) for array in jax.tree.leaves(arrays))


def _too_large(params: Columns) -> list[str]:
    """What to call the parameters whose squared norm is not finite."""
    norms = {name: float(np.linalg.norm(np.asarray(value, np.float64))) for name, value in params.items()}
    largest = max(norms, key=lambda name: np.inf if np.isnan(norms[name]) else norms[name])
    return [f"the new value of {largest}"]


def _rate(lr: Any, name: str) -> Any:
    """The step size of one parameter."""
    return lr[part_of(name)] if isinstance(lr, Mapping) else lr


def _on_host(arrays: Columns) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in jax.device_get(dict(arrays)).items()}


def _not_finite(where: str, step: int, tensor: str, columns: Sequence[str] = ()) -> NonFiniteError:
    return NonFiniteError(
        "Learning stopped: a loss, gradient or new weight is not finite. The weights are those before this step.",
        where=f"{where}, gradient step {step}: {tensor}",
        got="NaN, infinity, or numbers whose squares add up to it"
        + (f"; so are the batch's columns {list(columns)}" if columns else ""),
        expected="finite numbers",
        fix="lower lr, set grad_clip, normalize observations (observation_filter='MeanStdFilter') or clip rewards",
    )
