"""Checks of a policy's inputs and results: observations, columns to learn from, numbers, weights, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from gymnasium import Space, spaces

from rollax.batch import Columns, SampleBatch
from rollax.batch.columns import MissingColumnError
from rollax.core import trees
from rollax.core.numbers import NON_NUMERIC_KINDS
from rollax.core.spaces import Path, at, leaves, path_text, space_text
from rollax.errors import BatchError, NonFiniteError, PolicyError, ShapeError, page

_WHOLE = frozenset("iub")
_MISFIT = (AttributeError, IndexError, KeyError, TypeError)


class Misfit(NamedTuple):
    """The first part of columns that does not fit its space.

    Attributes:
        path: the path of the part in the columns.
        space: the space of the part.
        got: the type and shape of the part, or the value in its place.
        shape: the expected shape.
        whole: whether integers are expected.
        of_kind: whether the only difference is the kind of numbers.
    """

    path: Path
    space: Space
    got: Any
    shape: tuple[int | str, ...]
    whole: bool
    of_kind: bool


class ColumnShapes:
    """The shapes of a space's parts, against which a policy checks columns in each call.

    Args:
        space: the space of the values in columns [N, ...]; they may be encoded, such as integers as floats.
        whole: refuse floats in the place of integers.
    """

    def __init__(self, space: Space, *, whole: bool = False) -> None:
        self._parts = [
            (path, tuple(leaf.shape or ()), whole and not isinstance(leaf, spaces.Box)) for path, leaf in leaves(space)
        ]
        self._space = space

    def misfit(self, columns: trees.Tree, rows: int | None = None) -> Misfit | None:
        """The first misfit in columns of `rows` rows (None: as many as in the first part); None if all parts fit."""
        number: Any = "N" if rows is None else rows  # for errors: the expected number of rows
        for path, shape, whole in self._parts:
            try:
                column = at(columns, path)
                found = column.shape
                if rows is None:
                    rows = found[0]
                kind = getattr(column.dtype, "kind", "")  # dtypes of PyTorch have none
                fits = found[0] == rows and found[1:] == shape
                fits = fits and (kind in _WHOLE if whole and kind else kind not in NON_NUMERIC_KINDS)
            except _MISFIT:
                fits = False
            if not fits:
                return self._described(columns, path, (number, *shape), whole)
            number = rows
        return None

    def rows_of(self, columns: trees.Tree) -> int:
        """The number of rows of columns that fit; the columns may have further keys."""
        return len(at(columns, self._parts[0][0])) if self._parts else 0

    def _described(self, columns: trees.Tree, path: Path, shape: tuple[int | str, ...], whole: bool) -> Misfit:
        leaf, of_kind = dict(leaves(self._space))[path], False
        try:
            got: Any = at(columns, path)
        except _MISFIT:
            got = f"no such part in {type(columns).__name__}"
        if isinstance(got, Mapping):
            got = f"a dict with the keys {list(got)}"
        elif hasattr(got, "dtype"):
            got, of_kind = f"{got.dtype}{list(got.shape)}", tuple(got.shape) == shape
        return Misfit(path, leaf, got, shape, whole, of_kind)


_NAMES = frozenset(value for key, value in vars(SampleBatch).items() if key.isupper()) - {SampleBatch.TARGET}
"""The columns that a batch may have; targets are computed for the loss."""
_OF_SEQUENCES = {
    SampleBatch.STATE_IN: "leave state_in out of `reads`: the loss of a model with memory has it anyway, one row "
    "for each sequence",
    SampleBatch.SEQ_LENS: "leave seq_lens out of `reads`: the argument mask of the loss is 0 on the padding of "
    "sequences",
}
"""The fix for a column with one row for each sequence, where the other columns have one row for each step."""

Method = TypeVar("Method", bound=Callable[..., Any])


class LearnedColumns:
    """The shapes that the columns `obs`, `new_obs` and `actions` of a policy have."""

    def __init__(self, observation_space: Space, action_space: Space, changed: frozenset[str] = frozenset()) -> None:
        seen, chosen = ColumnShapes(observation_space), ColumnShapes(action_space, whole=True)
        shapes = {SampleBatch.OBS: seen, SampleBatch.NEW_OBS: seen, SampleBatch.ACTIONS: chosen}
        self._shapes = {name: shape for name, shape in shapes.items() if name not in changed}

    def check(self, columns: Mapping[str, Any], batch: SampleBatch, where: str) -> None:
        """Raises BatchError for a column whose length is not the batch's length: padding would fill it with zeros.

        Also raises BatchError if observations or actions of the batch are not numbers, or do not have the shapes of the
        policy's spaces. The values of the numbers are not checked.
        """
        rows = len(batch)
        for name, column in columns.items():
            for leaf in trees.leaves(column):
                if np.shape(leaf)[:1] != (rows,):
                    what = "The number of rows of the column is not that of its batch."
                    raise BatchError(
                        what, f"{where}, loss_columns, column {name!r}", f"shape {np.shape(leaf)}"
                    ).expected(
                        f"({rows}, ...)",
                        _OF_SEQUENCES.get(name)
                        or "return one row for each row of the batch; a number that is equal for all rows belongs "
                        "in coefficients()",
                    )
        for name, shapes in self._shapes.items():
            # An override of `loss_columns` may have changed the column for its own loss.
            given = (column := columns.get(name)) is not None and column is batch.get(name)
            if given and (misfit := shapes.misfit(column, rows)) is not None:
                raise _refused(where, name, misfit)


def _refused(where: str, name: str, misfit: Misfit) -> BatchError:
    what = "action" if name == SampleBatch.ACTIONS else "observation"
    if misfit.of_kind:
        fix = f"convert the column: batch[{name!r}].astype(np.{misfit.space.dtype})"
    else:
        fix = (
            f"pass one row for each step, in the shapes of the {what} space; for a column that postprocess changes, "
            f"set own_columns = frozenset({{{name!r}}})"
        )
    return BatchError(
        f"The {what}s of the batch do not fit the policy's {what} space.",
        f"{where}, column {name!r}{path_text(misfit.path)}",
        misfit.got,
    ).expected(f"{'whole ' if misfit.whole else ''}numbers {list(misfit.shape)}, of {space_text(misfit.space)}", fix)


def naming_missing_columns(method: Method) -> Method:
    """Decorates a `method(batch)` of a policy: it raises MissingColumnError for a column that the loss cannot read."""

    @wraps(method)
    def named(self: Any, batch: SampleBatch) -> Any:
        try:
            return method(self, batch)
        except MissingColumnError as error:
            raise _missing(self.label, error.parts["got"], batch) from error
        except KeyError as error:
            name = error.args[0] if len(error.args) == 1 else None
            reads = self.algorithm.reads or ()
            if not isinstance(name, str):
                raise  # it is the key of another dict
            if name in self.memory.columns or (self.memory.present and name == SampleBatch.NEW_OBS and name in reads):
                raise _of_memory(self.label, name) from error
            if not (name in _NAMES or name in batch) or name in reads:
                raise  # it is the key of another dict
            raise _missing(self.label, name, batch) from error

    return cast(Method, named)


def _of_memory(where: str, name: str) -> MissingColumnError:
    return MissingColumnError(
        "The loss, or its targets, are for a model without memory, but the model has memory.",
        f"{where}, column {name!r}",
        "a forward pass over columns without the inputs of the memory"
        if name != SampleBatch.NEW_OBS
        else "sequences, which have `target_rows` in the place of `new_obs`",
    ).expected(
        "self.forward(model, batch), over all rows of the sequences; with replay its outputs at batch['target_rows'] "
        "are those of the observations after n steps",
        f"see {page('replay-algorithm', 'more-columns-and-sequences')}, or use a model without memory",
    )


def _missing(where: str, name: str, batch: SampleBatch) -> MissingColumnError:
    if name in batch:
        return MissingColumnError(
            "The loss reads a column that the algorithm does not name.",
            f"{where}, column {name!r}",
            "the column in the batch, but neither in `reads` nor returned by loss_columns(batch, rng)",
        ).expected(f"{name!r} in `reads`", f"name it: reads = (*BaseClass.reads, {name!r})")
    fixes = _OF_SEQUENCES | {"dones": f"use {SampleBatch.TERMINATEDS} and {SampleBatch.TRUNCATEDS}, which are separate"}
    filled = "pass a batch that postprocess returned or a replay buffer returns, or fill the column"
    return MissingColumnError(
        "The batch lacks a column that the policy learns from.", f"{where}, column {name!r}", f"columns {list(batch)}"
    ).expected(f"the column {name!r} too", fixes.get(name, filled))


def check_finite(numbers: np.ndarray, policy_id: str, timestep: int) -> None:
    """Raises NonFiniteError, with the row, if numbers [N, ...], or their sum, are not finite."""
    # A finite sum implies finite elements; one test is cheaper than a test of each element.
    if not math.isfinite(numbers.sum()):
        # Row 0 if every number is finite and only the sum is not.
        row = int(np.argmin(np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)))
        raise NonFiniteError(
            "The model's outputs are not finite: no action can be chosen.",
            where=f"policy {policy_id!r}, row {row} of {len(numbers)}, at timestep {timestep}",
            got="a NaN or infinite log-probability, value or action",
            expected="finite outputs",
            fix="look for NaN in the weights, or for very large observations; observation_filter="
            "'MeanStdFilter' standardizes them",
        )


def not_finite(where: str, step: int, tensor: str, columns: Sequence[str] = ()) -> NonFiniteError:
    """Returns the error of an update in which `tensor` (and `columns` of the batch) in step `step` is not finite."""
    return NonFiniteError(
        "Learning stopped: a loss, gradient or new weight is not finite. The weights are those before this step.",
        f"{where}, gradient step {step}: {tensor}",
        "NaN, infinity, or numbers whose sum of squares overflows"
        + (f"; the batch's columns {list(columns)} are not finite either" if columns else ""),
        expected="finite numbers",
    ).fix(
        "lower lr, set grad_clip, normalize observations (observation_filter='MeanStdFilter') or clip rewards; in a "
        "loss of your own, subtract action_space.start from the actions: `chosen` returns NaN for an index out of range"
    )


_SAME_NETWORK = (
    "use the spaces and the config that the weights were made with: 'model', and keys of the algorithm that shape its "
    "network too, such as num_atoms, noisy, dueling, hiddens, twin_q, mixer"
)


def check_gradients(gradients: Any, where: str) -> None:
    """Raises PolicyError unless the gradients are a dict; `check_weights` checks the arrays in it."""
    if not isinstance(gradients, Mapping):
        what = "The gradients are not a dict of arrays by name."
        fix = "gradients, statistics = policy.compute_gradients(batch); then policy.apply_gradients(gradients)"
        raise PolicyError(what, f"{where}, apply_gradients", type(gradients).__name__).expected("name -> array", fix)


def check_weights(weights: Any, shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises PolicyError unless the weights are real numbers with the names and shapes in `shapes`."""
    if not isinstance(weights, Mapping):
        raise PolicyError("The weights are not a dict of arrays by name.", where, type(weights).__name__).expected(
            "name -> array", "pass the dict that get_weights() of a policy with the same model returned"
        )
    if weights.keys() != shapes.keys():
        raise PolicyError(
            "The weights are of a different model.",
            where,
            f"{len(weights)} arrays; missing: {sorted(shapes.keys() - weights.keys())}, "
            f"unknown: {sorted(weights.keys() - shapes.keys())}",
        ).expected(f"{len(shapes)} arrays: {sorted(shapes)}", _SAME_NETWORK)
    for name, value in weights.items():
        if np.shape(value) != shapes[name]:
            raise PolicyError(
                "An array of the weights has the wrong shape.", f"{where}, {name}", np.shape(value)
            ).expected(shapes[name], _SAME_NETWORK)
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        if getattr(dtype, "kind", "") in NON_NUMERIC_KINDS:
            raise PolicyError(
                "An array of the weights has no real numbers.", f"{where}, {name}", f"dtype {dtype}"
            ).expected("real numbers, such as float32", "convert it: np.asarray(array, np.float32)")


def checked_loss(
    algorithm: Any, array: type, model: Any, out: Any, batch: Columns, mask: Any, coefficients: Columns
) -> tuple[Any, Mapping[str, Any]]:
    """Returns `(loss, statistics)` of the algorithm for a minibatch; `array` is the type of the library's arrays.

    Raises PolicyError unless the loss is one number, or if it reads targets that the algorithm does not compute.
    """
    try:
        result = algorithm.loss(model, out, batch, mask, coefficients)
    except KeyError as error:
        if error.args != (SampleBatch.TARGET,) or SampleBatch.TARGET in batch:
            raise
        raise PolicyError(
            "The loss reads targets that the method `targets` does not return.",
            f"{algorithm.label}, targets",
            f"columns {list(batch)}",
        ).expected(
            f"the column {SampleBatch.TARGET!r} too",
            "return {SampleBatch.TARGET: ...} from `targets`, which is called if the plan has updated_targets",
        ) from error
    fits = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    if fits and isinstance(result[0], array) and result[0].ndim == 0:
        return result
    parts = result if isinstance(result, tuple) else (result,)
    name = array.__name__.rpartition(".")[2]  # JAX writes the module before it
    raise PolicyError(
        "The loss function does not return a number and a dict of statistics.",
        f"{algorithm.label}, loss",
        ", ".join(f"{name} {list(p.shape)}" if isinstance(p, array) else type(p).__name__ for p in parts),
        expected=f"({name} [], {{name: statistic}})",
    ).fix("return a mean over the valid rows, such as masked_mean(errors, mask), and a dict, which may be empty")


def td_error_of(statistics: Mapping[str, Any], rows: int, where: str) -> Any:
    """Returns the statistic `td_error` [rows]; raises PolicyError if it is missing, ShapeError for another shape."""
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
    """Returns the error for a statistic that is neither a number nor a column with one number for each row."""
    return ShapeError("A statistic by row has the wrong shape.", f"statistic {name!r} of the loss", got).expected(
        f"{expected}: one number for each row of the minibatch, or for each sequence if the model has memory",
        "return its mean, or with memory one number for each sequence",
    )


def check_dtypes(name: str, values: trees.Tree, column: trees.Tree) -> None:
    """Raises PolicyError if the values of a poll cannot be stored in the dtype that the first poll gave their column.

    Assigned to a column of integers, fractions would be cut off.
    """
    if isinstance(column, np.ndarray) and values.dtype == column.dtype:
        return

    def check(new: np.ndarray, stored: np.ndarray) -> None:
        if not np.can_cast(new.dtype, stored.dtype, "same_kind"):
            raise PolicyError(
                "The dtype of a policy's column differs from that of its first rows.",
                f"column {name!r} of compute_actions",
                str(new.dtype),
            ).expected(str(stored.dtype), "return the same dtype at every call, such as floats where fractions follow")

    trees.tree_map(check, values, column)  # by key: Dicts may have their keys in another order
