"""Epochs × minibatches as one compiled call, for any loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from rollax.errors import CheckpointError, NonFiniteError

Columns = Mapping[str, Any]
Loss = Callable[[Columns, Columns, Columns, jax.Array, Columns], tuple[jax.Array, tuple[dict, Columns]]]
"""(params, extra, batch, mask, coefficients) -> (loss, (statistics, extra))."""


def acting_bucket(rows: int) -> int:
    """The number of rows that a forward pass is padded to: the next power of two."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The number of rows that a batch is padded to: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


def standardized(x: np.ndarray) -> np.ndarray:
    """[N] float32 of mean 0 and deviation 1; zeros where all are equal."""
    x = x.astype(np.float64)  # in float32 the mean of equal numbers may miss them, and the quotient be noise
    return ((x - x.mean()) / (x.std() + 1e-8)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class MinibatchPlan:
    """Which rows make up which gradient step.

    Args:
        rows: [U, B] row indices, -1 for padding; U is a bound that depends on the bucket alone.
        steps: how many of the U are to be made.
        last_epoch: the first step of the last epoch.
        capacity: rows that the columns are padded to.
    """

    rows: np.ndarray
    steps: int
    last_epoch: int
    capacity: int

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        rows: int,
        minibatch_size: int | None,
        epochs: int,
        *,
        few_sizes: bool = False,
    ) -> MinibatchPlan:
        """A new shuffle for each epoch; each row is used once per epoch.

        Args:
            rng: shuffles.
            rows: how many there are.
            minibatch_size: rows of one gradient step; None for all of them.
            epochs: passes over the rows.
            few_sizes: where `rows` varies much from batch to batch: pads to powers of two, which compiles less often.
        """
        capacity = acting_bucket(rows) if few_sizes else training_bucket(rows)
        size = capacity if minibatch_size is None else minibatch_size
        per_epoch = -(-rows // size)
        plan = np.full((epochs * -(-capacity // size), size), -1, np.int32)
        for epoch in range(epochs):
            order = np.arange(rows) if minibatch_size is None else rng.permutation(rows)
            plan.reshape(-1)[epoch * per_epoch * size :][:rows] = order
        return cls(plan, epochs * per_epoch, (epochs - 1) * per_epoch, capacity)


class Update(NamedTuple):
    """What an update leaves behind: donation has used up the arrays before it.

    Args:
        params: the parameters, after as many gradient steps as went well.
        extra: the model's other state.
        statistics: means over the last epoch.
        error: what stopped it before the end of the plan; None if nothing did.
    """

    params: Columns
    extra: Columns
    statistics: dict[str, float]
    error: NonFiniteError | None


class Learner:
    """Holds the optimizer's state and the compiled functions that use it.

    Args:
        loss: a pure function of arrays.
        optimizer: gives the direction; the coefficient `lr` scales it.
        params: the parameters that it starts from.
    """

    def __init__(self, loss: Loss, optimizer: optax.GradientTransformation, params: Columns) -> None:
        self._loss = loss
        self._optimizer = optimizer
        # Compiled as a whole: op by op it would compile a tiny program for every shape.
        self.optimizer_state = jax.jit(optimizer.init)(dict(params))
        self.num_updates = 0
        self._update = jax.jit(self._run_plan, donate_argnums=(0, 1, 2))
        self._gradients = jax.jit(self._one_gradient)
        self._apply = jax.jit(self._one_step, donate_argnums=(0, 1))

    def functions(self) -> Sequence[Any]:
        """The compiled functions."""
        return self._update, self._gradients, self._apply

    def learn(
        self, params: Columns, extra: Columns, batch: Columns, plan: MinibatchPlan, coefficients: Columns, where: str
    ) -> Update:
        """Runs the whole plan, or until a loss or gradient is not finite; the arrays passed in are used up."""
        params, extra, self.optimizer_state, sums, done, finite = self._update(
            params, extra, self.optimizer_state, batch, plan.rows, plan.steps, plan.last_epoch, coefficients
        )
        self.num_updates += int(done)
        if not finite:
            error = self._diagnose(params, extra, batch, plan, int(done), coefficients, where)
            return Update(params, extra, {}, error)
        counted = plan.steps - plan.last_epoch
        return Update(params, extra, {name: float(v) / counted for name, v in jax.device_get(sums).items()}, None)

    def gradients(
        self, params: Columns, extra: Columns, batch: Columns, plan: MinibatchPlan, coefficients: Columns
    ) -> tuple[Columns, dict[str, float]]:
        """Gradients by name and statistics of the plan's first minibatch."""
        _, gradients, stats, _ = self._gradients(params, extra, batch, plan.rows[0], coefficients)
        return gradients, {name: float(value) for name, value in jax.device_get(stats).items()}

    def apply(self, params: Columns, gradients: Columns, lr: float, where: str) -> Columns:
        """The parameters after one step; those passed in are used up.

        Raises:
            NonFiniteError: a gradient is not finite; nothing is changed.
        """
        bad = [name for name, value in gradients.items() if not np.isfinite(value).all()]
        if bad:
            raise _not_finite(where, self.num_updates, f"the gradient of {bad[0]}")
        params, self.optimizer_state = self._apply(params, self.optimizer_state, dict(gradients), lr)
        self.num_updates += 1
        return params

    def _run_plan(
        self,
        params: Columns,
        extra: Columns,
        optimizer_state: Any,
        batch: Columns,
        plan: jax.Array,
        steps: jax.Array,
        last_epoch: jax.Array,
        coefficients: Columns,
    ) -> tuple:
        shapes = jax.eval_shape(self._one_gradient, params, extra, batch, plan[0], coefficients)
        zeros = jax.tree.map(lambda stat: jnp.zeros(stat.shape, stat.dtype), shapes[2])

        def going_on(carry: tuple) -> jax.Array:
            step, _, _, _, _, finite = carry
            return (step < steps) & finite

        def minibatch(carry: tuple) -> tuple:
            step, params, extra, optimizer_state, sums, _ = carry
            loss, gradients, stats, new_extra = self._one_gradient(params, extra, batch, plan[step], coefficients)
            # One number tells whether all gradients are finite: their squared norm.
            norm = sum(jnp.vdot(gradient, gradient) for gradient in jax.tree.leaves(gradients))
            finite = jnp.isfinite(loss) & jnp.isfinite(norm)
            new_params, new_state = self._one_step(params, optimizer_state, gradients, coefficients["lr"])

            def keep(new: jax.Array, old: jax.Array) -> jax.Array:
                return jnp.where(finite, new, old)

            counts = step >= last_epoch
            return (
                step + finite,
                jax.tree.map(keep, new_params, params),
                jax.tree.map(keep, new_extra, extra),
                jax.tree.map(keep, new_state, optimizer_state),
                jax.tree.map(lambda total, stat: total + jnp.where(counts, stat, 0), sums, stats),
                finite,
            )

        start = (jnp.int32(0), dict(params), dict(extra), optimizer_state, zeros, jnp.array(True))
        done, params, extra, optimizer_state, sums, finite = lax.while_loop(going_on, minibatch, start)
        return params, extra, optimizer_state, sums, done, finite

    def _one_gradient(
        self, params: Columns, extra: Columns, batch: Columns, rows: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, Any, dict, Columns]:
        mask = (rows >= 0).astype(jnp.float32)
        minibatch = jax.tree.map(lambda column: column[rows], dict(batch))
        (loss, (stats, extra)), gradients = jax.value_and_grad(self._loss, has_aux=True)(
            dict(params), extra, minibatch, mask, coefficients
        )
        return loss, gradients, stats, extra

    def _one_step(self, params: Columns, optimizer_state: Any, gradients: Any, lr: Any) -> tuple[dict, Any]:
        direction, optimizer_state = self._optimizer.update(gradients, optimizer_state, dict(params))
        return jax.tree.map(lambda p, d: p - lr * d, dict(params), direction), optimizer_state

    def _diagnose(
        self,
        params: Columns,
        extra: Columns,
        batch: Columns,
        plan: MinibatchPlan,
        step: int,
        coefficients: Columns,
        where: str,
    ) -> NonFiniteError:
        """Repeats the failed step, whose weights are untouched, to say which tensor it was."""
        loss, gradients, stats, _ = self._gradients(params, extra, batch, plan.rows[step], coefficients)
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not np.isfinite(loss):
            terms = [name for name, value in stats.items() if name != "total_loss" and not np.isfinite(value)]
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
        self.optimizer_state = jax.tree.unflatten(tree, leaves)


def _not_finite(where: str, step: int, tensor: str, columns: Sequence[str] = ()) -> NonFiniteError:
    return NonFiniteError(
        "Learning stopped: a loss or gradient is not finite. The weights are those before this gradient step.",
        where=f"{where}, gradient step {step}: {tensor}",
        got="NaN or infinity" + (f"; so are the batch's columns {list(columns)}" if columns else ""),
        expected="finite numbers",
        fix="lower lr, set grad_clip, normalize observations (observation_filter='MeanStdFilter') or clip rewards",
    )
