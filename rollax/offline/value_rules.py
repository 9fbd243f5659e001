"""`ValueRules`: rules for the values of recorded trajectories, in learning, estimates and `rollax data check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.finite import first_not_finite
from rollax.core import trees
from rollax.core.space_codec import outside
from rollax.core.spaces import ACTION_MASK, Path, at, choices, leaves
from rollax.offline.dataset import ENV_ACTIONS, RecordedTrajectory
from rollax.policy.action_masks import are_allowed, masks_choices

FINITE = "finite numbers"
IN_FLOAT32 = f"a number within ±{np.finfo(np.float32).max:.3g}, as float32 holds it"


class Problem(NamedTuple):
    """The first value of an array that breaks a rule.

    Attributes:
        kind: kind of error: the shape of the array, a NaN or infinity, a value outside the space, or an action that the
            mask of its observation forbids.
        column: the name of the column.
        path: the part of a nested space.
        row: the row of the column; None for a wrong shape.
        got: the number, the shape, or the mask.
        expected: a space, a shape, or a string.
    """

    kind: Literal["shape", "not finite", "outside", "forbidden"]
    column: str
    path: Path
    row: int | None
    got: Any
    expected: Any


class ValueRules:
    """The rules for the trajectories of one policy; each method returns its problems lazily.

    Args:
        observation_space: None if it is unknown; then NaN is the only error of observations.
        action_space: action space of the environment; None if it is unknown; then actions must be finite.
    """

    def __init__(self, observation_space: Space | None, action_space: Space | None) -> None:
        of_actions = None if action_space is None else leaves(action_space)
        self._leaves = {
            SampleBatch.OBS: None if observation_space is None else leaves(observation_space),
            SampleBatch.ACTIONS: of_actions,
            ENV_ACTIONS: of_actions,
        }
        self._masked_space = action_space if masks_choices(observation_space, action_space) else None

    def columns(
        self, trajectory: RecordedTrajectory, *, actions_of: Literal["policy", "environment"]
    ) -> Iterator[Problem]:
        """Problems of an unchanged trajectory: shapes, and numbers that the dtypes of the spaces cannot store.

        A cast to these dtypes would change such numbers silently: 0.7 would become 0, and 300 as uint8 44.

        Args:
            actions_of: the scale of the column `actions`, see `DatasetReader`. In a policy's scale, the actions of an
                integer Box may be fractions.
        """
        steps = len(trajectory)
        yield from self._of_space(SampleBatch.OBS, trajectory, steps + 1)
        yield from self._of_space(SampleBatch.ACTIONS, trajectory, steps, scaled=actions_of == "policy")
        if ENV_ACTIONS in trajectory.columns:
            yield from self._of_space(ENV_ACTIONS, trajectory, steps)
        for name in (SampleBatch.REWARDS, SampleBatch.ACTION_LOGP):
            shape = np.shape(trajectory.columns.get(name, np.zeros(steps)))
            if shape != (steps,):
                yield Problem("shape", name, (), None, shape, (steps,))
            elif name == SampleBatch.REWARDS:
                rewards = np.asarray(trajectory.columns[name])
                too_large = _lost(rewards, np.dtype(np.float32))
                if too_large is not None and too_large.any():
                    row = int(np.argmax(too_large))
                    yield Problem("outside", name, (), row, rewards[row], IN_FLOAT32)

    def values(self, obs: trees.Tree, actions: trees.Tree, rewards: NDArray, lengths: NDArray) -> Iterator[Problem]:
        """Problems of the values in n trajectories with N steps in all, whose `columns` have none.

        They are: NaN; infinity, except in unbounded elements of observations; values outside a discrete space; actions
        that the mask of their observation forbids. Numbers beyond the bounds of a Box are allowed, because some
        environments return them.

        Args:
            obs: columns [N + n, ...] in the dtypes of the space; each trajectory ends with its last observation.
            actions: columns [N, ...]; actions of a Box may be in any scale.
            rewards: [N].
            lengths: [n] steps of each trajectory.
        """
        yield from self.in_space(SampleBatch.OBS, obs)
        of_actions = list(self.in_space(SampleBatch.ACTIONS, actions))
        yield from of_actions
        yield from not_finite(SampleBatch.REWARDS, rewards)
        if self._masked_space is not None and not of_actions:
            yield from _forbidden(obs[ACTION_MASK], actions, self._masked_space, lengths)

    def in_space(self, name: str, column: trees.Tree) -> Iterator[Problem]:
        """The rules of `values` for one column: `obs`, `actions` or `env_actions`."""
        known = self._leaves[name]
        if known is None:
            yield from not_finite(name, column)
            return
        for path, leaf in known:
            array = np.asarray(at(column, path))
            if not isinstance(leaf, spaces.Box):
                yield from _first(name, path, leaf, array, outside(leaf, array))
            elif array.dtype.kind == "f":
                finite = np.isfinite(array)
                if not finite.all():
                    allowed = finite | _unbounded(leaf, array) if name == SampleBatch.OBS else finite
                    yield from _first(name, path, leaf, array, ~allowed)

    def _of_space(
        self, name: str, trajectory: RecordedTrajectory, rows: int, *, scaled: bool = False
    ) -> Iterator[Problem]:
        for path, leaf in self._leaves[name] or ():
            try:
                column = at(trajectory.columns[name], path)
            except (KeyError, IndexError, TypeError):
                column = None
            expected = rows, *(leaf.shape or ())
            if column is None or np.shape(column) != expected:
                yield Problem("shape", name, path, None, "nothing" if column is None else np.shape(column), expected)
                continue
            array = np.asarray(column)
            if array.dtype == leaf.dtype:
                continue
            if scaled and isinstance(leaf, spaces.Box):
                # The map to the environment rounds, and would convert a NaN to an arbitrary integer.
                wrong = np.isnan(array) if leaf.dtype.kind != "f" and array.dtype.kind == "f" else None
            else:
                wrong = _lost(array, leaf.dtype)
            yield from _first(name, path, leaf, array, wrong)


def not_finite(name: str, column: trees.Tree) -> Iterator[Problem]:
    """The problem of a column with NaN or infinity, by the rule of `first_not_finite`, which needs no space."""
    bad = first_not_finite(name, column)
    if bad is not None:
        yield Problem("not finite", name, (), bad.row, bad.number, FINITE)


def _forbidden(mask: Any, actions: trees.Tree, action_space: Space, lengths: NDArray) -> Iterator[Problem]:
    if np.shape(mask)[1:] != (sum(choices(action_space)),):
        return  # the policy will refuse the mask
    mask = np.delete(np.asarray(mask), np.cumsum(lengths + 1) - 1, axis=0)
    allowed = are_allowed(mask, actions, action_space)
    if not allowed.all():
        row = int(np.argmin(allowed))
        yield Problem("forbidden", SampleBatch.ACTIONS, (), row, mask[row], "a valid action")


def _first(name: str, path: Path, leaf: Space, array: NDArray, wrong: NDArray[np.bool_] | None) -> Iterator[Problem]:
    """The problem of the first wrong number, if there is one."""
    if wrong is None or not wrong.any():
        return
    place = tuple(np.argwhere(wrong)[0].tolist())
    number = array[place]
    if array.dtype.kind == "f" and not np.isfinite(number):
        bounded = name == SampleBatch.OBS and not np.isnan(number)
        yield Problem("not finite", name, path, place[0], number, leaf if bounded else FINITE)
    else:
        yield Problem("outside", name, path, place[0], number, leaf)


def _unbounded(leaf: spaces.Box, array: NDArray) -> NDArray[np.bool_]:
    """Mask of infinities on a side without a bound."""
    return ((array == np.inf) & ~leaf.bounded_above) | ((array == -np.inf) & ~leaf.bounded_below)


def _lost(array: NDArray, dtype: Any) -> NDArray[np.bool_] | None:
    """Mask of numbers that the dtype cannot store, except for rounding; None if the dtypes exclude them."""
    if array.dtype.kind not in "biuf":
        return np.ones(array.shape, np.bool_)
    if np.can_cast(array.dtype, dtype):
        return None
    if dtype.kind == "f":
        return (np.abs(array) > np.finfo(dtype).max) & np.isfinite(array)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.dtype.kind != "f":
        return (array < least) | (array > most)
    numbers = array.astype(np.float64, copy=False)
    # The largest int64 is not a float64: the next one, 2**63, does not fit.
    return ~((numbers >= least) & (numbers < float(most + 1)) & (numbers == np.rint(numbers)))
