"""Checks of the columns that a policy learns from: whether all exist and fit its spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from gymnasium import Space

from rollax.batch import SampleBatch
from rollax.batch.columns import MissingColumnError
from rollax.core import trees
from rollax.core.spaces import path_text, space_text
from rollax.errors import BatchError
from rollax.policy.column_shapes import ColumnShapes, Misfit

_NAMES = frozenset(value for key, value in vars(SampleBatch).items() if key.isupper())
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
        """Raises BatchError for a column of another length than the batch, which padding would fill with zeros.

        Also for observations or actions of the batch that are no numbers or have other shapes than in the policy's
        spaces; their values are not read.
        """
        rows = len(batch)
        for name, column in columns.items():
            for leaf in trees.leaves(column):
                if np.shape(leaf)[:1] != (rows,):
                    what = "The number of rows of the column is not that of its batch."
                    raise BatchError(what, f"{where}, drawn, column {name!r}", f"shape {np.shape(leaf)}").expected(
                        f"({rows}, ...)",
                        _OF_SEQUENCES.get(name)
                        or "return one row for each row of the batch; return numbers that are equal for all rows from "
                        "coefficients()",
                    )
        for name, shapes in self._shapes.items():
            # An override of `drawn` may have changed the column for its own loss.
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
    """Makes a method of a policy that takes a batch raise MissingColumnError for a column that its loss lacks."""

    @wraps(method)
    def named(self: Any, batch: SampleBatch) -> Any:
        try:
            return method(self, batch)
        except MissingColumnError as error:
            raise _missing(self.label, error.parts["got"], batch) from error
        except KeyError as error:
            name = error.args[0] if len(error.args) == 1 else None
            if (
                not isinstance(name, str)
                or not (name in _NAMES or name in batch)
                or name in (self.algorithm.reads or ())
            ):
                raise  # the key is of another dict
            raise _missing(self.label, name, batch) from error

    return cast(Method, named)


def _missing(where: str, name: str, batch: SampleBatch) -> MissingColumnError:
    if name in batch:
        return MissingColumnError(
            "The loss reads a column that the algorithm does not name.",
            f"{where}, column {name!r}",
            "the column in the batch, but neither in `reads` nor returned by drawn(batch, rng)",
        ).expected(f"{name!r} in `reads`", f"name it: reads = (*BaseClass.reads, {name!r})")
    fixes = _OF_SEQUENCES | {"dones": f"use {SampleBatch.TERMINATEDS} and {SampleBatch.TRUNCATEDS}, which are separate"}
    filled = "pass a batch that postprocess returned or a replay buffer returns, or fill the column"
    return MissingColumnError(
        "The batch lacks a column that the policy learns from.", f"{where}, column {name!r}", f"columns {list(batch)}"
    ).expected(f"the column {name!r} too", fixes.get(name, filled))
