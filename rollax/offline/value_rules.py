"""Rules for the values of recorded trajectories: `ValueRules` finds problems, `RecordedChecks` raises their errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.finite import first_not_finite
from rollax.core import trees
from rollax.core.space_codec import outside
from rollax.core.spaces import ACTION_MASK, Path, at, choices, leaves, path_text, same_space, space_text
from rollax.errors import DatasetError, NonFiniteError, PolicyError, RollaxError, ShapeError, SpaceError
from rollax.offline.dataset import ENV_ACTIONS, DatasetReader, RecordedTrajectory
from rollax.policy.mask_checks import are_allowed, masks_choices

if TYPE_CHECKING:
    from rollax.policy.policy import Policy

_LEAVE_OUT = "leave the episode out: `rollax data check` lists what is wrong"
FINITE = "finite numbers"
IN_FLOAT32 = f"a number within ±{np.finfo(np.float32).max:.3g}, as float32 holds it"


class Problem(NamedTuple):
    """The first value of an array that breaks a rule.

    Attributes:
        kind: kind of error: the shape of the array, a NaN or infinity, a value outside the space, or an action that the
            mask of its observation forbids.
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
    """The rules for the trajectories of one policy; the methods yield problems.

    Args:
        observation_space: None if it is unknown; then only NaN is a problem of observations.
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
        """Problems of a trajectory as recorded: shapes, and numbers that the dtypes of the spaces cannot store.

        A cast to these dtypes would change such numbers silently: 0.7 would become 0, and 300 would become 44 in uint8.

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
        """Problems of the values in n trajectories with N steps in all, whose `columns` have no problems.

        These are: NaN; infinity, except in unbounded elements of observations; values outside a discrete space; actions
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


class RecordedChecks:
    """The checks of one policy's trajectories; errors name the file and place."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules = ValueRules(policy.observation_space, policy.action_space)
        self._known: set[str] = set()

    def spaces(self, trajectory: RecordedTrajectory, reader: DatasetReader) -> None:
        """Refuses spaces of the data that differ from the policy's."""
        recorded, policy = trajectory.policy_id, self._policy
        if recorded in self._known:
            return
        for kind in ("observation_space", "action_space"):
            theirs, ours = getattr(reader, f"{kind}s").get(recorded), getattr(policy, kind)
            if theirs is not None and not same_space(theirs, ours):
                got, expected = space_text(theirs), space_text(ours)
                if got == expected:
                    got, expected = theirs, ours
                what = f"The recorded data and the policy have different {kind.replace('_', ' ')}s."
                where = f"policy {policy.name!r}, {trajectory.where or 'recorded data'}"
                fix = "use data of the same environment; to learn with the spaces of the data, leave env out"
                raise SpaceError(what, where, got, expected=expected, fix=fix)
        self._known.add(recorded)

    def shapes(
        self, trajectory: RecordedTrajectory, *, actions_of: Literal["policy", "environment"] = "policy"
    ) -> None:
        """Refuses columns with other shapes than their spaces, and numbers that the spaces' dtypes cannot hold.

        Called before the columns are cast to these dtypes.

        Args:
            actions_of: see `ValueRules.columns`.
        """
        problem = next(self._rules.columns(trajectory, actions_of=actions_of), None)
        if problem is not None:
            raise self._error(problem, trajectory.place, problem.row)

    def values(self, obs: Any, actions: Any, rewards: NDArray, trajectories: Sequence[RecordedTrajectory]) -> None:
        """Refuses impossible values, by the rules of `ValueRules.values`.

        Args:
            obs, actions, rewards: as for `ValueRules.values`.
            trajectories: their lengths are used, and their places in error messages.
        """
        lengths = np.array([len(trajectory) for trajectory in trajectories])
        problem = next(self._rules.values(obs, actions, rewards, lengths), None)
        if problem is None:
            return
        assert problem.row is not None
        starts = np.cumsum(lengths) - lengths
        if problem.column == SampleBatch.OBS:
            starts += np.arange(len(starts))
        number = int(np.searchsorted(starts, problem.row, side="right")) - 1
        raise self._error(problem, trajectories[number].place, problem.row - int(starts[number]))

    def _error(self, problem: Problem, where: str, step: int | None) -> RollaxError:
        place = f"column {problem.column!r}{path_text(problem.path)}"
        if problem.kind == "shape":
            what = "A recorded column does not have the shape of its space."
            return ShapeError(what, f"{where}, {place}", problem.got, expected=problem.expected, fix=_LEAVE_OUT)
        if problem.kind == "not finite":
            error, what = NonFiniteError, "The recorded data contains NaN or infinity."
        elif problem.kind == "forbidden":
            error, what = PolicyError, "A recorded action is not allowed by the action mask."
        elif problem.column == SampleBatch.REWARDS:
            error, what = DatasetError, "A recorded reward is too large."
        elif problem.column == SampleBatch.OBS:
            error, what = DatasetError, "A recorded observation is outside the observation space."
        else:
            error, what = PolicyError, "A recorded action is outside the action space."
        at = f"policy {self._policy.name!r}, {where}, step {step}, {place}"
        return error(what, at, problem.got, expected=problem.expected, fix=_LEAVE_OUT)


def not_finite(name: str, column: trees.Tree) -> Iterator[Problem]:
    """The first NaN or infinity of a column whose space is unknown; observations may be infinite."""
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
    """Mask of numbers out of range, or not whole for an integer `dtype`; None if the array's dtype excludes both."""
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
    # The largest int64 is not a float64: the next float64, 2**63, does not fit.
    return ~((numbers >= least) & (numbers < float(most + 1)) & (numbers == np.rint(numbers)))
