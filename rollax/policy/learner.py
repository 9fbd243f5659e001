"""`Learner`: the variables that gradient steps change, for any loss, on all devices of the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rollax.batch import Columns
from rollax.core import trees
from rollax.core.runtime import first_equal
from rollax.errors import CheckpointError, NonFiniteError
from rollax.policy.checks import not_finite
from rollax.policy.devices import Devices, OneFetch
from rollax.policy.gradient_steps import GradientSteps, Objective, Variables, means_of_last_epoch
from rollax.policy.split_model import arrays_in, restored
from rollax.policy.update_plan import Minibatches, UpdateResult


class Learner:
    """Holds the variables that gradient steps change.

    An update is one compiled call, whose results are assigned together: an interrupt or a lack of memory leaves the
    variables unchanged. With several devices, each minibatch is divided among the devices and each device has a copy of
    the variables; the parameters for acting are on the first device.

    Args:
        objective: what the steps minimize; target parameters exist if its plan updates them.
        params, extra: name -> array, the initial variables.
        devices: by default all local devices of JAX.
    """

    def __init__(
        self, objective: Objective, params: Columns, extra: Columns, *, devices: Devices | None = None
    ) -> None:
        self.devices = Devices() if devices is None else devices
        self.steps = first_equal(GradientSteps(objective, self.devices))
        self.has_targets = objective.plan.updated_targets is not None
        optimizer_state = self.steps.first_state(self.devices.everywhere(dict(params)))
        params, extra = self.devices.first((dict(params), dict(extra)))
        self.variables = Variables(params, extra, None, optimizer_state, 0)

    @property
    def num_updates(self) -> int:
        """Gradient steps taken so far."""
        return self.variables.num_updates

    @property
    def targets(self) -> Columns:
        """Name -> target parameter: the parameters before the first update; empty if the plan has no targets."""
        if not self.has_targets:
            return {}
        return self.variables.params if self.variables.targets is None else self.variables.targets

    @np.errstate(over="ignore")  # a step size beyond float32 makes the new parameters infinite
    def learn(self, batch: Columns, plan: Minibatches, coefficients: Columns, where: str) -> UpdateResult:
        """Runs the plan until `stops` ends it, or a loss, gradient or new parameter is not finite."""
        columns, plan = self._placed(batch, plan)
        before, per_epoch = self.everywhere(), plan.steps - plan.last_epoch

        def run(steps: int) -> tuple[Variables, OneFetch]:
            return self.steps.update(before, columns, plan.rows, steps, per_epoch, coefficients)

        after, results = run(plan.steps)
        # Waits for the device, whose errors are raised here, before anything has changed.
        taken, sums, counts, rows, finite = results.fetched()
        taken = int(taken)
        # The last minibatch, which made no step if it ended the update early.
        last = min(taken, plan.steps - 1)
        if finite:
            update = UpdateResult(means_of_last_epoch(sums, counts, last=last, per_epoch=per_epoch), rows, None)
        else:
            # Repeats the plan up to the failed step: keeping the variables of each step would slow down all updates.
            after = before
            if taken:
                after, results = run(taken)
                if not results.fetched()[-1]:  # on a GPU, sums may differ by rounding
                    after, taken, last = before, 0, 0
            update = UpdateResult({}, {}, self._diagnose(after, columns, plan.rows[last], coefficients, where))
        self.assign(after, self.num_updates + taken)
        return update

    def gradients(self, batch: Columns, plan: Minibatches, coefficients: Columns) -> tuple[Columns, dict[str, Any]]:
        """`(arrays by name, statistics)` of the plan's first minibatch; the variables do not change.

        The arrays are the gradients of parameters, and the new values of other state that the loss changes, such as
        batch statistics and random streams, because `apply` may be called in another process.
        """
        columns, plan = self._placed(batch, plan)
        before = self.everywhere()
        made = self.steps.gradients(before, columns, plan.rows[0], coefficients)
        changed = {name: value for name, value in made.extra.items() if not np.array_equal(value, before.extra[name])}
        stats, found = jax.device_get((made.statistics, made.found))
        on_host = {name: np.asarray(value) for name, value in stats.items() if found.get(name, True)}
        return {**made.gradients, **changed}, {
            name: value.item() if value.ndim == 0 else value for name, value in on_host.items()
        }

    @np.errstate(over="ignore")  # as in `learn`
    def apply(self, gradients: Columns, lr: Any, where: str) -> None:
        """One step with the arrays of `gradients`.

        Raises NonFiniteError, without a change, if an array, the norm of the gradient or a new parameter is not finite.
        """
        arrays = {name: value if hasattr(value, "dtype") else np.asarray(value) for name, value in gradients.items()}
        before, given = self.everywhere(), self.devices.everywhere(arrays)
        extra = {name: given.pop(name) for name in before.extra.keys() & given.keys()}
        bad = [f"the gradient of {name}" for name, value in given.items() if not np.isfinite(value).all()]
        bad += [f"the new value of {name}" for name, value in extra.items() if not np.isfinite(value).all()]
        if not bad:
            before = before._replace(extra={**before.extra, **extra})
            after, finite = self.steps.apply(before, given, lr)
            if finite:  # waits for the device
                self.assign(after, self.num_updates + 1)
                return
            bad = _too_large(given, after.params)
        raise not_finite(where, self.num_updates, bad[0])

    def set_targets(self, targets: Columns) -> None:
        """Sets the target parameters."""
        self.variables = self.variables._replace(targets=self.devices.everywhere(dict(targets)))

    def everywhere(self) -> Variables:
        """The variables as arguments of the compiled functions."""
        variables = self.variables._replace(targets=self.targets, num_updates=np.int32(self.num_updates))
        return self.devices.everywhere(variables)

    def assign(self, after: Variables, num_updates: int) -> None:
        """Sets the variables that a compiled function has returned."""
        params, extra = self.devices.first((after.params, after.extra))
        self.variables = after._replace(params=params, extra=extra, num_updates=num_updates)

    def _placed(self, batch: Columns, plan: Minibatches) -> tuple[Columns, Minibatches]:
        if self.devices.count == 1:
            return batch, plan
        plan = plan.divisible(self.devices.count)
        return self.devices.by_row(trees.pad(dict(batch), plan.capacity)), plan

    def _diagnose(
        self, variables: Variables, batch: Columns, rows: Any, coefficients: Columns, where: str
    ) -> NonFiniteError:
        """Repeats the failed step, to name the tensor that is not finite."""
        loss, gradients, stats, *_ = self.steps.gradients(variables, batch, rows, coefficients)
        bad = [f"the gradient of {name}" for name, value in gradients.items() if not np.isfinite(value).all()]
        if not np.isfinite(loss):
            terms = [name for name, value in stats.items() if name != "total_loss" and not np.isfinite(value).all()]
            bad = [f"the loss ({', '.join(terms) or 'total_loss'})", *bad]
        bad = bad or _too_large(gradients, self.steps.apply(variables, gradients, coefficients["lr"])[0].params)
        columns = [
            name
            for name, column in batch.items()
            if any(leaf.dtype.kind == "f" and not np.isfinite(leaf).all() for leaf in jax.tree.leaves(column))
        ]
        return not_finite(where, int(variables.num_updates), ", ".join(bad[:3]), columns)

    def optimizer_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the optimizer's state, by name."""
        return arrays_in(self.variables.optimizer_state)

    def get_state(self) -> dict[str, Any]:
        """Optimizer state, number of gradient steps, and target parameters if they differ from the parameters."""
        targets = {name: np.array(value) for name, value in (self.variables.targets or {}).items()}
        return {"optimizer": self.optimizer_arrays(), "num_updates": self.num_updates, "targets": targets}

    def set_state(self, arrays: Mapping[str, np.ndarray], num_updates: int, targets: Columns, where: str) -> None:
        """Restores what `get_state` returned; raises CheckpointError if the arrays are of another optimizer."""
        state, expected = self.variables.optimizer_state, self.optimizer_arrays()
        if {n: np.shape(a) for n, a in arrays.items()} != {n: a.shape for n, a in expected.items()}:
            raise CheckpointError(
                "The state is that of a different optimizer.",
                where=where,
                got=sorted(arrays),
                expected=sorted(expected),
                fix="restore with the policy class and the model that the checkpoint was made with",
            )
        state = self.devices.everywhere(restored(state, arrays))
        self.variables = self.variables._replace(optimizer_state=state, num_updates=num_updates)
        if self.has_targets and targets:
            self.set_targets(targets)


def _too_large(gradients: Columns, params: Columns) -> list[str]:
    """Returns what is too large, for an error: the norm of the gradient if it is infinite, else a parameter."""
    if not np.isfinite(sum(np.vdot(value, value) for value in gradients.values())):
        return ["the norm of the gradient"]
    norms = {name: float(np.linalg.norm(np.asarray(value, np.float64))) for name, value in params.items()}
    largest = max(norms, key=lambda name: np.inf if np.isnan(norms[name]) else norms[name])
    return [f"the new value of {largest}"]
