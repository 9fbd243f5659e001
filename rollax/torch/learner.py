"""`Learner`: epochs × minibatches for any loss in PyTorch; after an exception, the state is as before the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollax.batch import Columns
from rollax.core import trees
from rollax.core.importing import path_of
from rollax.errors import NonFiniteError, PolicyError
from rollax.policy.checks import check_gradients, check_weights, not_finite
from rollax.policy.update_plan import Minibatches, StopsUpdate, UpdatedTargets, UpdateResult, due_parts
from rollax.torch.epoch import Epoch
from rollax.torch.model_tensors import ModelTensors
from rollax.torch.optimizers import optimizer_arrays, set_optimizer_arrays
from rollax.torch.random_numbers import random_numbers_of
from rollax.torch.statistics import of_microbatches, of_valid_rows, statistics_of
from rollax.torch.weights import assign, to_numpy, to_tensors

Loss = Callable[[Columns, Tensor, Columns], tuple[Tensor, dict[str, Any]]]
"""(batch, mask, coefficients with `num_updates` and `parts`) -> (loss, statistics): tensors, arrays or numbers."""
Rates = float | Mapping[str, float]


class Learner:
    """Holds the model, its optimizer and its target model, and changes them in place.

    After an exception or an interrupt in `learn` or `apply` everything is restored. If a loss, gradient or new
    parameter is not finite, `learn` restores everything, repeats the update, and stops before the step that fails.

    Args:
        optimizer: an optimizer that `check_optimizer` accepts.
        by_part: whether each part of the model has its own learning rate; the parts then name the optimizer's groups.
        every: part of the model -> k, for a part that changes only in every k-th gradient step.
        grad_clip: bound on the gradient's norm, of each part or of the whole model; None: no bound.
        count_rows: (batch, mask) -> [] the number of rows over which the loss of a microbatch is averaged.
        compiled: whether the loss is compiled. Coefficients are then tensors, so that there are few compiled versions.
        keeps_padding: whether minibatches keep their padding, so that all have the same size.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        by_part: bool,
        every: Mapping[str, int],
        updated_targets: UpdatedTargets | None,
        stops: StopsUpdate | None,
        grad_clip: float | None,
        generator: torch.Generator,
        device: torch.device,
        count_rows: Callable[[Columns, Tensor], Tensor] = lambda batch, mask: mask.sum(),
        compiled: bool = False,
        keeps_padding: bool = False,
    ) -> None:
        self.model, self.optimizer, self.generator = model, optimizer, generator
        self.tensors = ModelTensors(model, updated_targets)
        self._keeps_padding = keeps_padding
        together: dict[str | None, list[Tensor]] = {}  # by part
        for group in optimizer.param_groups:
            together.setdefault(group["name"] if by_part else None, []).extend(group["params"])
        self._clipped_together = list(together.values())
        self.num_updates = 0
        self._loss, self._stops, self._every = loss, stops, every
        self._grad_clip, self._device, self._compiled, self._count_rows = grad_clip, device, compiled, count_rows

    def learn(self, columns: Columns, plan: Minibatches, coefficients: Columns, where: str) -> UpdateResult:
        """Runs the plan until `stops` ends it or a step is not finite; this last step does not change the weights."""
        self.tensors.check_complete(where)
        batch = to_tensors(dict(columns), self._device)
        before = self._snapshot()
        try:
            update = self._run(batch, plan, coefficients, where, careful=False)
            if update is None:
                self._restore(before)
                before = self._snapshot()  # the optimizer now holds the tensors of the first snapshot
                update = self._run(batch, plan, coefficients, where, careful=True)
        except BaseException:
            self._restore(before)
            raise
        assert update is not None
        return update

    def gradients(
        self, columns: Columns, plan: Minibatches, coefficients: Columns, where: str
    ) -> tuple[Columns, dict[str, Any]]:
        """Returns `(name -> array, statistics)` of the plan's first minibatch; the model does not change.

        The arrays are the gradients of the parameters that have one, and the new values of other state that the loss
        changes, such as the running statistics of batch normalization. Another process can pass them to `apply`.
        """
        self.tensors.check_complete(where)
        batch = to_tensors(dict(columns), self._device)
        try:
            with self.tensors.keeping_extra() as before, self._learning():
                _, stats = self._backward(Epoch(batch, plan, 0, keeps_padding=self._keeps_padding), 0, coefficients)
                extra, params = self.tensors.extra, self.tensors.params
                changed = {name: to_numpy(t) for name, t in extra.items() if not torch.equal(t, before[name])}
            gradients = {name: to_numpy(p.grad) for name, p in params.items() if p.grad is not None}
        finally:
            self.tensors.clear_gradients()
        numbers = {n: value.item() if value.ndim == 0 else to_numpy(value) for n, value in stats.items()}
        return {**gradients, **changed}, numbers

    def apply(self, gradients: Mapping[str, Any], lr: Rates, where: str) -> None:
        """One step with the arrays of `gradients`.

        Raises NonFiniteError, without a change, if a gradient, its norm or a new parameter is not finite, or other
        state is NaN; PolicyError for arrays of another model.
        """
        check_gradients(gradients, where)
        extra = {name: tensor for name, tensor in self.tensors.extra.items() if name in gradients}
        params = self.tensors.params
        known = {name: tensor for name, tensor in params.items() if name in gradients or not params.keys() & gradients}
        shapes = {name: tuple(tensor.shape) for name, tensor in {**known, **extra}.items()}
        check_weights(gradients, shapes, f"{where}, apply_gradients")
        bad = [f"the gradient of {name}" for name in known if not np.isfinite(gradients[name]).all()]
        # Other state may be infinite, such as the start of a running minimum.
        bad += [f"the new value of {name}" for name in extra if np.isnan(gradients[name]).any()]
        if bad:
            raise not_finite(where, self.num_updates, bad[0])
        before, step = self._snapshot(), self.num_updates
        try:
            assign(extra, gradients)
            self.tensors.clear_gradients()
            for name, parameter in known.items():
                if parameter.requires_grad:
                    gradient = np.asarray(gradients[name])
                    parameter.grad = torch.tensor(gradient, device=self._device, dtype=parameter.dtype)
            if not math.isfinite(self._clipped_norm()):
                raise not_finite(where, step, "the norm of the gradient")
            self._step(lr)
            if bad := self.tensors.not_finite():
                raise not_finite(where, step, bad[0])
        except BaseException:
            self._restore(before)
            raise

    def _run(
        self, batch: Columns, plan: Minibatches, coefficients: Columns, where: str, *, careful: bool
    ) -> UpdateResult | None:
        """Runs the plan; None if a tensor is not finite. A `careful` run returns an error that names the tensor."""
        per_epoch = plan.steps - plan.last_epoch
        found: list[dict[str, Tensor]] = []
        by_row: dict[str, Tensor] = {}
        epoch = None
        with self._learning():
            for step in range(plan.steps):
                if epoch is None or step % per_epoch == 0:
                    epoch = Epoch(batch, plan, step - step % per_epoch, keeps_padding=self._keeps_padding)
                    found = []
                before = self._snapshot() if careful else None
                extra = [] if self._stops is None else [(one, one.clone()) for one in self.tensors.extra.values()]
                loss, stats = self._backward(epoch, step, coefficients)
                norm = self._clipped_norm()
                finite = math.isfinite(loss.item() + norm)
                stopped = finite and self._stops is not None and bool(self._stops(stats))
                if finite and not stopped:
                    self._step(coefficients["lr"])
                if careful and not (finite and self.tensors.are_finite()):
                    error = self._error(stats, loss, batch, where)
                    assert before is not None
                    self._restore(before)
                    return UpdateResult({}, {}, error)
                if not finite:
                    return None
                found.append({name: value for name, value in stats.items() if value.ndim == 0})
                for name, value in stats.items():
                    if value.ndim:
                        column = by_row.setdefault(name, value.new_zeros(plan.capacity))
                        column[epoch.rows_of(step)] = value
                if stopped:
                    self.tensors.restore(extra)
                    break
        if not self.tensors.are_finite():
            return None
        columns: dict[str, list[Tensor]] = {}
        for name, value in (item for stats in found for item in stats.items()):
            columns.setdefault(name, []).append(value)  # some minibatches may have further statistics
        means = {name: torch.stack(values).mean().item() for name, values in columns.items()}
        return UpdateResult(means, {name: to_numpy(column) for name, column in by_row.items()}, None)

    def _backward(self, epoch: Epoch, step: int, coefficients: Columns) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss and the statistics of a minibatch, and sets the gradients of the parameters.

        Statistics by row exclude padding. The loss of several microbatches is their mean, weighted by their valid rows.
        """
        self.tensors.clear_gradients()
        now = {**coefficients, "num_updates": self.num_updates}
        if self._compiled:  # a compiled loss is specialized to numbers, but not to tensors
            now = trees.tree_map(partial(torch.tensor, device=self._device), now)
        now["parts"] = due_parts(self.tensors.parts, self._every, self.num_updates)
        parts = epoch.minibatch(step)
        counts = torch.stack([self._count_rows(batch, mask) for batch, mask in parts]) if len(parts) > 1 else None
        found: dict[str, dict[int, Tensor]] = {}  # name -> number of the microbatch -> statistic
        with self.tensors.learning(now["parts"]):
            for number, (batch, mask) in enumerate(parts):
                loss, stats = self._loss(batch, mask, now)
                stats = statistics_of(stats, self._device)
                if counts is not None:
                    loss = loss * (counts[number] / counts.sum())
                if not loss.requires_grad:
                    raise _no_gradient(loss)
                loss.backward()
                for name, value in stats.items():
                    kept = of_valid_rows(name, value, mask) if value.ndim else value
                    found.setdefault(name, {})[number] = kept.detach()
        totals = {name: of_microbatches(name, values, counts, len(parts)) for name, values in found.items()}
        return totals["total_loss"], totals

    def _clipped_norm(self) -> float:
        """Clips the gradient of each part, or of the whole model; returns the squared norm before clipping.

        The norm is finite only if all elements are finite.
        """
        total = 0.0
        for parameters in self._clipped_together:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if not gradients:
                continue
            if any(gradient.is_sparse for gradient in gradients):
                raise PolicyError(
                    "Sparse gradients are not supported.",
                    [self.tensors.names[p] for p in parameters if p.grad is not None and p.grad.is_sparse],
                ).expected("dense gradients", "leave sparse=True out: nn.Embedding(..., sparse=False)")
            norm = torch.nn.utils.get_total_norm(gradients).item()
            if self._grad_clip is not None and norm > self._grad_clip:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._grad_clip, torch.tensor(norm))
            total += torch.tensor(norm).square().item()  # infinite in float32, as Adam's second moments would be
        return total

    def _step(self, lr: Rates) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr[group["name"]] if isinstance(lr, Mapping) else lr
        self.optimizer.step()
        self.num_updates += 1
        self.tensors.move_targets(self.num_updates)

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Inside the block, the model is in training mode, and all random numbers come from the policy's stream."""
        try:
            self.model.train()
            with random_numbers_of(self.generator, self._device):
                yield
        finally:
            self.model.eval()
            self.tensors.keep_buffers()

    @contextmanager
    def exploring(self) -> Iterator[None]:
        """Inside the block, the model is in training mode; its other state, such as buffers, is restored after it."""
        with self.tensors.keeping_extra():
            try:
                self.model.train()
                yield
            finally:
                self.model.eval()

    def _error(self, stats: Mapping[str, Tensor], loss: Tensor, batch: Columns, where: str) -> NonFiniteError:
        """Returns the error of a failed step, which names the tensors that are not finite."""
        bad = [] if loss.isfinite() else [f"the loss ({', '.join(_terms(stats)) or 'total_loss'})"]
        gradients = ((name, parameter.grad) for name, parameter in self.tensors.params.items())
        bad += [f"the gradient of {name}" for name, g in gradients if g is not None and not g.isfinite().all()]
        step = self.num_updates
        if not bad and (bad := self.tensors.not_finite()):
            step -= 1  # the step that produced them is already counted
        columns = [
            name
            for name, column in batch.items()
            if any(leaf.is_floating_point() and not leaf.isfinite().all() for leaf in trees.leaves(column))
        ]
        return not_finite(where, step, ", ".join(bad[:3]) or "the norm of the gradient", columns)

    def _snapshot(self) -> Any:
        state = {
            parameter: {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
            for parameter, values in self.optimizer.state.items()
        }
        return self.tensors.copies(), state, self.num_updates, self.generator.get_state()

    def _restore(self, snapshot: Any) -> None:
        copies, state, self.num_updates, random = snapshot
        self.model.eval()
        self.tensors.restore(copies)
        self.optimizer.state.clear()
        self.optimizer.state.update(state)
        self.generator.set_state(random)

    def get_state(self) -> dict[str, Any]:
        """Optimizer state, number of gradient steps, target parameters, and the random stream."""
        return {
            "optimizer": optimizer_arrays(self.optimizer, self.tensors.names),
            "optimizer_class": path_of(type(self.optimizer)),
            "num_updates": self.num_updates,
            "targets": {name: to_numpy(target) for name, target in self.tensors.targets.items()},
            "generator": self.generator.get_state().numpy().copy(),
        }

    def set_state(self, optimizer: Mapping[str, np.ndarray], num_updates: int, targets: Columns, where: str) -> None:
        """Restores what `get_state` returned, except the random stream; CheckpointError for another optimizer."""
        set_optimizer_arrays(self.optimizer, self.tensors.params, optimizer, where)
        self.num_updates = num_updates
        if targets:
            self.tensors.set_targets(targets)


def _no_gradient(loss: Tensor) -> PolicyError:
    return PolicyError(
        "The loss has no gradient.", "loss", f"{loss.item()}, detached from the model's parameters"
    ).expected("a number that depends on the model's outputs", "compute it without detach(), item() or torch.no_grad()")


def _terms(stats: Mapping[str, Tensor]) -> list[str]:
    return [name for name, value in stats.items() if name != "total_loss" and not value.isfinite().all()]
