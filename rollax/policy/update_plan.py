"""`UpdatePlan`: the gradient steps of an update; `Minibatches`: the rows of each step, with padding to a few sizes.

This module imports no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import Columns
from rollax.core.numbers import is_whole
from rollax.errors import NonFiniteError, PolicyError

UpdatedTargets = Callable[[Columns, Columns, Any], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], Any]
"""Statistics of a minibatch -> [] whether the update ends before its gradient step."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps.

    `every` maps an attribute of the model to k: this part makes a step only at every k-th gradient step. At other steps
    its weights, its optimizer state and its other state, such as batch statistics, do not change.

    Raises PolicyError for a size, a number of epochs or an interval that is not an integer of at least 1.
    """

    minibatch_size: int | None = None  # rows of one gradient step; None: the whole batch
    epochs: int = 1  # passes over each batch
    microbatch_size: int | None = None  # rows of one forward and backward pass, whose gradients are averaged; None: all
    updated_targets: UpdatedTargets | None = None  # None: there are no target parameters
    stops: StopsUpdate | None = None  # None: an update runs all its gradient steps
    every: Mapping[str, int] = field(default_factory=dict, hash=False)  # part -> k; others make every step

    def __post_init__(self) -> None:
        for part, interval in self.every.items():
            check_whole(interval, f"UpdatePlan, every[{part!r}]")
        for name in ("minibatch_size", "epochs", "microbatch_size"):
            value = getattr(self, name)
            if value is not None or name == "epochs":
                check_whole(value, f"UpdatePlan, {name}")


def acting_bucket(rows: int) -> int:
    """The padded number of rows of a forward pass: the least power of two that is not below `rows`."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The padded number of rows of a batch: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


@dataclass(frozen=True, slots=True)
class Minibatches:
    """The rows of each gradient step.

    `rows` are row indices [U, B], or [U, K, M] with K microbatches. U depends on the padded sizes. Indices of padding
    are negative: as in NumPy, they count from the end of the `capacity` rows. They select real rows of the same epoch,
    so that statistics over a minibatch, for example in batch normalization, are computed from real rows.
    """

    rows: np.ndarray
    steps: int  # the number of gradient steps, at most U
    last_epoch: int  # the first step of the last epoch
    capacity: int  # the padded number of rows

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        rows: int,
        minibatch_size: int | None,
        epochs: int,
        *,
        microbatch_size: int | None = None,
        few_sizes: bool = False,
        in_order: bool = False,
    ) -> Minibatches:
        """Returns a plan with each row once per epoch; sizes as in `UpdatePlan`.

        Rows are in random order, unless `in_order` is set or `minibatch_size` is None.

        Args:
            few_sizes: whether to pad to powers of two, which compiles less often if `rows` varies much.
            in_order: do not shuffle. If a replayed batch has a transition twice, its last row then sets the priority.
        """
        capacity = acting_bucket(rows) if few_sizes else training_bucket(rows)
        size = capacity if minibatch_size is None else minibatch_size
        per_epoch = -(-rows // size)
        plan = np.full((epochs * -(-capacity // size), size), -capacity, np.int32)
        for epoch in range(epochs):
            order = np.arange(rows) if in_order or minibatch_size is None else rng.permutation(rows)
            of_epoch = plan.reshape(-1)[epoch * per_epoch * size :][: per_epoch * size]
            of_epoch[:] = np.resize(order, len(of_epoch)) - capacity
            of_epoch[:rows] = order
        if microbatch_size is not None and microbatch_size < size:
            count = -(-size // microbatch_size)
            plan = _widened(plan, count * microbatch_size, capacity).reshape(len(plan), count, microbatch_size)
        return cls(plan, epochs * per_epoch, (epochs - 1) * per_epoch, capacity)

    def divisible(self, count: int) -> Minibatches:
        """The same plan, padded so that its capacity and the last axis of `rows` are multiples of `count`."""
        capacity, width = (-(-size // count) * count for size in (self.capacity, self.rows.shape[-1]))
        rows = np.where(self.rows < 0, self.rows + self.capacity - capacity, self.rows)
        return replace(self, rows=_widened(rows, width, capacity), capacity=capacity)


def _widened(rows: np.ndarray, width: int, capacity: int) -> np.ndarray:
    """`rows` with the last axis padded to `width` by entries from its beginning, as indices of padding."""
    wider = np.resize(np.arange(rows.shape[-1]), width)
    padded = rows[..., wider]
    more = padded[..., rows.shape[-1] :]
    more[more >= 0] -= capacity
    return padded


class UpdateResult(NamedTuple):
    """The result of an update."""

    statistics: dict[str, float]  # name -> mean in the last epoch that began, over the steps that have the statistic
    rows: dict[str, np.ndarray]  # name -> [capacity] statistics by row, from each row's last gradient step
    error: NonFiniteError | None  # the failure that ended the update; None also where `stops` ended it


def check_whole(value: Any, where: str) -> None:
    """Raises PolicyError unless the value is an integer of at least 1."""
    if not (is_whole(value) and value >= 1):
        raise PolicyError("The value is not an integer of at least 1.", where=where, got=value)


def check_every(parts: Collection[str], every: Mapping[str, int], rates: Any, where: str) -> None:
    """Raises PolicyError for an interval of a part of the model that has no learning rate of its own."""
    own = set(parts) & rates.keys() if isinstance(rates, Mapping) else set()
    if unknown := sorted(every.keys() - own):
        raise PolicyError(
            "The plan has intervals for parts of the model that have no optimizer of their own.",
            where=f"{where}, make_plan, UpdatePlan.every",
            got=unknown,
            expected=f"some of {sorted(own)}, the attributes of the model that have a learning rate of their own",
            fix="return a learning rate for each part of the model from learning_rates",
        )


def due_parts(parts: Collection[str], every: Mapping[str, int], updates_before: int) -> frozenset[str]:
    """Returns the parts of the model that change in the gradient step after `updates_before` other steps."""
    return frozenset(part for part in parts if (updates_before + 1) % every.get(part, 1) == 0)


def check_rates(parts: Collection[str], rates: Any, where: str) -> None:
    """Raises PolicyError for attributes of a model with trained parameters, but without a learning rate."""
    if isinstance(rates, Mapping) and (left := sorted(set(parts) - rates.keys())):
        raise PolicyError(
            "Parts of the model have no learning rate.",
            where=f"{where}, make_model and learning_rates",
            got=f"learning rates of {sorted(rates)}, and a model with trained parameters in {left}",
            expected="one learning rate for each attribute of the model that has trained parameters",
            fix=f"return a model with the attributes {sorted(rates)} from make_model, or override learning_rates",
        )


def part_of(name: str) -> str:
    """The attribute of the model that contains the variable of this name."""
    return name.partition(".")[0]


def rate_of(lr: Any, name: str) -> Any:
    """Returns the step size of one parameter; `lr` is a number, or a dict with one for each part of the model."""
    return lr[part_of(name)] if isinstance(lr, Mapping) else lr


def check_parts(owners: Mapping[str, Collection[str]], targets: UpdatedTargets | None, where: str) -> None:
    """Refuses parts of `polyak_average` that share parameters with another attribute of the model.

    Args:
        owners: name of a parameter -> all attributes of the model that contain the parameter. The name begins with one
            of these attributes.
        targets: the plan's `updated_targets`.
        where: the algorithm, for errors.
    Raises:
        PolicyError: a shared parameter, whose target would be constant.
    """
    averaged = getattr(targets, "parts", frozenset())
    for name, attributes in owners.items():
        own = part_of(name)
        if own not in averaged and (others := averaged.intersection(attributes)):
            raise PolicyError(
                "Some target parameters would never change: another attribute of the model owns them.",
                where=f"{where}, make_plan",
                got=f"{name}, which is in {sorted(others)} too",
                expected="polyak_average with all attributes that share parameters",
                fix=f"pass all of them: polyak_average(tau, {tuple(sorted({own, *averaged}))})",
            )
