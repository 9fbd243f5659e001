"""How a batch becomes gradient steps: plan, rows of each step, what a loss returns, and the result. Without JAX."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.core.numbers import is_whole
from rollax.errors import NonFiniteError, PolicyError, ShapeError

UpdatedTargets = Callable[[Columns, Columns, Any], Columns]
"""(targets, params, num_updates) -> targets, after a gradient step."""
StopsUpdate = Callable[[Columns], Any]
"""Statistics of a minibatch -> [] whether the update ends before its gradient step."""


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """How a batch becomes gradient steps; PolicyError for sizes, epochs or intervals that are no integers from 1 on.

    `every` maps an attribute of the model to k: this part makes a step at every k-th gradient step. At other steps it
    does not change, nor does its state in the optimizer or beside the weights, such as batch statistics.
    """

    minibatch_size: int | None = None  # rows of one gradient step; None: the whole batch
    epochs: int = 1  # passes over each batch
    microbatch_size: int | None = None  # rows of one forward and backward pass, whose gradients are averaged; None: all
    targets: UpdatedTargets | None = None  # None: there are no target parameters
    stops: StopsUpdate | None = None  # None: an update runs all its gradient steps
    every: Mapping[str, int] = field(default_factory=dict, hash=False)  # part -> k; others make every step

    def __post_init__(self) -> None:
        for part, interval in self.every.items():
            check_whole(interval, f"UpdatePlan, every[{part!r}]")
        for name in ("minibatch_size", "epochs", "microbatch_size"):
            value = getattr(self, name)
            if value is not None or name == "epochs":
                check_whole(value, f"UpdatePlan, {name}")


class UpdateResult(NamedTuple):
    """The result of an update."""

    statistics: dict[str, float]  # means over the steps of the last epoch that began, of those that have the statistic
    rows: dict[str, np.ndarray]  # name -> [capacity] statistics by row, from each row's last gradient step
    error: NonFiniteError | None  # the reason why the update stopped before the end of the plan


def check_every(parts: Collection[str], every: Mapping[str, int], rates: Any, where: str) -> None:
    """Raises PolicyError for an interval of what is not a part of the model with a learning rate of its own.

    Args:
        parts: the model's attributes with trained parameters.
        every: of the plan.
        rates: a number, or one for each part.
        where: the algorithm, for errors.
    """
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
    """The parts of the model that make the gradient step after this number of others."""
    return frozenset(part for part in parts if (updates_before + 1) % every.get(part, 1) == 0)


def check_rates(parts: Collection[str], rates: Any, where: str) -> None:
    """Raises PolicyError for attributes of a model with trained parameters, but without a learning rate.

    Args:
        parts: the attributes.
        rates: a number, or one for each attribute.
        where: the algorithm, for errors.
    """
    if isinstance(rates, Mapping) and (left := sorted(set(parts) - rates.keys())):
        raise PolicyError(
            "Parts of the model have no learning rate.",
            where=f"{where}, make_model and learning_rates",
            got=f"learning rates of {sorted(rates)}, and a model with trained parameters in {left}",
            expected="one learning rate for each attribute of the model that has trained parameters",
            fix=f"return a model with the attributes {sorted(rates)} from make_model, or override learning_rates",
        )


def check_whole(value: Any, where: str) -> None:
    """Raises PolicyError unless the value is an integer from 1 on."""
    if not (is_whole(value) and value >= 1):
        raise PolicyError("The value is not an integer of at least 1.", where=where, got=value)


def part_of(name: str) -> str:
    """The attribute of the model that contains the variable of this name."""
    return name.partition(".")[0]


def acting_bucket(rows: int) -> int:
    """The padded number of rows of a forward pass: the next power of two."""
    return 1 << max(rows - 1, 0).bit_length()


def training_bucket(rows: int) -> int:
    """The padded number of rows of a batch: at most a quarter more, four sizes for each power of two."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


@dataclass(frozen=True, slots=True)
class Minibatches:
    """The rows of each gradient step.

    `rows` are [U, B] row indices; [U, K, M] with K microbatches. U depends on the padded sizes. Padding is negative: as
    an index it counts from the end of the `capacity` and selects a real row of the same epoch, so that statistics over
    a minibatch, for example in batch normalization, are computed from real rows.
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
        """Each row once per epoch, by default shuffled in each; sizes as in `UpdatePlan`.

        Args:
            few_sizes: whether to pad to powers of two, which compiles less often if `rows` varies much.
            in_order: do not shuffle. Of a transition that a replay sample has twice, the last row sets the priority.
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
        """The same plan, padded so that its capacity and the rows of a pass are multiples of `count`."""
        capacity, width = (-(-size // count) * count for size in (self.capacity, self.rows.shape[-1]))
        rows = np.where(self.rows < 0, self.rows + self.capacity - capacity, self.rows)
        return replace(self, rows=_widened(rows, width, capacity), capacity=capacity)


def _widened(rows: np.ndarray, width: int, capacity: int) -> np.ndarray:
    """The last axis padded with rows from its beginning."""
    wider = np.resize(np.arange(rows.shape[-1]), width)
    padded = rows[..., wider]
    more = padded[..., rows.shape[-1] :]
    more[more >= 0] -= capacity
    return padded


def checked_loss(result: Any, algorithm_class: type, array: type) -> tuple[Any, Mapping[str, Any]]:
    """What `loss` returned; PolicyError unless it is a number, as an array of this class, and statistics."""
    fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    if fits and isinstance(result[0], array) and result[0].ndim == 0:
        return result
    parts = result if isinstance(result, tuple) else (result,)
    name = array.__name__.rpartition(".")[2]  # JAX writes the module before it
    raise PolicyError(
        "The loss function does not return a number and a dict of statistics.",
        f"algorithm {algorithm_class.__name__}, loss",
        ", ".join(f"{name} {list(p.shape)}" if isinstance(p, array) else type(p).__name__ for p in parts),
        expected=f"({name} [], {{name: statistic}})",
    ).fix("return a mean over the valid rows, such as masked_mean(errors, mask), and a dict, which may be empty")


def td_error_of(statistics: Mapping[str, Any], rows: int, where: str) -> Any:
    """The statistic `td_error` [rows]; PolicyError for a loss without it, ShapeError for another shape."""
    if SampleBatch.TD_ERROR not in statistics:
        raise PolicyError("The loss returns no error for each row.", where, sorted(statistics)).expected(
            f"the statistic {SampleBatch.TD_ERROR!r} [N]",
            "return it from the loss: statistics[SampleBatch.TD_ERROR] = errors",
        )
    errors = statistics[SampleBatch.TD_ERROR]
    shape = tuple(np.shape(errors))
    if shape != (rows,):
        raise misshapen_statistic(SampleBatch.TD_ERROR, shape, (rows,))
    return errors


def misshapen_statistic(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> ShapeError:
    """The error of a statistic that is neither a number nor a column with one number for each row."""
    return ShapeError("A statistic by row has the wrong shape.", f"statistic {name!r} of the loss", got).expected(
        f"{expected}: one number for each row of the minibatch, with memory for each sequence",
        "return its mean, or with memory one number for each sequence",
    )
