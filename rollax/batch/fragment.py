"""`Fragment`: the rows of one policy in trajectory segments, and the row after each segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollax.batch.sample_batch import SampleBatch
from rollax.core import trees
from rollax.errors import BatchError

_SHARED = (SampleBatch.EPS_ID, SampleBatch.TRAJECTORY_ID, SampleBatch.AGENT_ID)


class Fragment(SampleBatch):
    """Rows in trajectory segments: the rows of a segment are neighbours, in time order.

    A segment ends where its trajectory terminated or was truncated, or where the fragment was full.

    Args:
        columns: as for `SampleBatch`.
        ends: [P] the position of each segment's last row, ascending.
        after: columns of P rows, by name: the values of the fragment's columns in the row after each segment. `obs` is
            the observation after the last row, also if the episode ended there; a policy with memory also has
            `state_in`, `prev_actions` and `prev_rewards`, and a critic that sees more than the actor has `critic_obs`.
        env_steps: as for `SampleBatch`.
    Raises:
        BatchError: the last row ends no segment, or the number of rows of `after` differs from the number of segments.
    """

    def __init__(
        self, columns: Mapping[str, Any], ends: Any, after: Mapping[str, trees.Tree], *, env_steps: int | None = None
    ) -> None:
        super().__init__(columns, env_steps=env_steps)
        self.ends = np.asarray(ends, np.int64)
        self.after = dict(after)
        if len(self) != (self.ends[-1] + 1 if len(self.ends) else 0):
            expected = f"positions up to {len(self) - 1}"
            raise BatchError(
                "The last row of the fragment does not end a segment.", "Fragment(ends=...)", self.ends[-1:].tolist()
            ).expected(expected, "add the last row of a cut-off segment to `ends`, and what came next to `after`")
        for name, column in self.after.items():
            if trees.length(column) != len(self.ends):
                what = "The number of rows of the column is not the number of segments."
                got, fix = trees.length(column), "give one row per segment, in order: what came after its last row"
                raise BatchError(what, f"Fragment(after=...), column {name!r}", got, expected=len(self.ends), fix=fix)

    @property
    def starts(self) -> np.ndarray:
        """[P] the position of each segment's first row."""
        return np.append(0, self.ends[:-1] + 1)[: len(self.ends)]

    @property
    def last(self) -> np.ndarray:
        """[N] true on the last row of each segment."""
        last = np.zeros(len(self), np.bool_)
        last[self.ends] = True
        return last

    @property
    def goes_on(self) -> np.ndarray:
        """[P] true where a segment does not end with a termination, so that the observation after it has a value.

        Raises:
            BatchError: an episode terminates inside a segment.
        """
        terminated = self[self.TERMINATEDS]
        ended = terminated[self.ends]
        if np.count_nonzero(ended) != np.count_nonzero(terminated):
            what = "An episode terminates inside a trajectory segment."
            expected = "terminateds only at the positions of `ends`"
            fix = "sort rows by trajectory and time, and list each last row in `ends`"
            raise BatchError(what, f"row {int(np.flatnonzero(terminated & ~self.last)[0])}", expected=expected, fix=fix)
        return ~ended

    def following(self, name: str) -> trees.Tree:
        """[N] the column's values one row later; for the last row of a segment, the value in `after`."""
        following = trees.index(self[name], np.minimum(np.arange(len(self)) + 1, len(self) - 1))
        trees.put(following, self.ends, self.after[name])
        return following

    def discounts(self, gamma: float) -> np.ndarray:
        """[N] float32: 0 where the episode terminated, γ in all other rows, truncated rows included."""
        return np.where(self[self.TERMINATEDS], 0.0, gamma).astype(np.float32)

    def transitions(self, n_step: int | None, gamma: float) -> SampleBatch:
        """[N] transitions of n steps, one that begins at each row, as drawn from a replay buffer; see `n_step_windows`.

        If fewer than n steps are left in the segment, or `n_step` is None, the transition ends with the segment.
        """
        from rollax.batch.n_step import dtype_of_returns, n_step_windows  # loaded only where it is used

        rows, size = np.arange(len(self)), len(self)
        following, positions = rows + 1, np.arange(size + len(self.ends))  # the rows, then the rows of `after`
        following[self.ends] = positions[size:]
        flags = self[self.TERMINATEDS], self[self.TRUNCATEDS], positions >= size
        windows = n_step_windows(rows, following, self[self.REWARDS], *flags, n_step=n_step, gamma=gamma)
        new_obs = trees.index(self[self.OBS], np.minimum(windows.targets, size - 1))
        beyond = np.flatnonzero(windows.targets >= size)
        trees.put(new_obs, beyond, trees.index(self.after[self.OBS], windows.targets[beyond] - size))
        return SampleBatch(
            {
                **self._columns,
                self.REWARDS: windows.returns.astype(dtype_of_returns(self[self.REWARDS].dtype)),
                self.NEW_OBS: new_obs,
                self.DISCOUNTS: windows.discounts.astype(np.float32),
                self.WEIGHTS: np.ones(size, np.float32),
            }
        )

    def select(self, *names: str) -> Fragment:
        """A fragment with the named columns only, which shares the arrays of this fragment."""
        after = {name: column for name, column in self.after.items() if name in names}
        return Fragment({name: self[name] for name in names}, self.ends, after, env_steps=self._env_steps)

    def segments(self) -> list[Fragment]:
        """Each segment as a separate fragment, with views of these arrays."""
        return [self[start:end] for start, end in zip(self.starts.tolist(), (self.ends + 1).tolist(), strict=True)]

    def extended(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions in a batch with one more row after each segment that does not terminate: `(rows, segments, added)`.

        [N] the positions of the rows, [E] the segments that do not terminate, and [E] the positions of the added rows.
        """
        segments, rows = np.flatnonzero(self.goes_on), np.arange(len(self))
        rows += np.searchsorted(self.ends[segments], rows)  # shifted by earlier added rows
        return rows, segments, rows[self.ends[segments]] + 1

    def with_bootstrap_rows(self) -> SampleBatch:
        """A copy with a bootstrap row after each segment that does not terminate.

        A bootstrap row has the columns of `after` and the ids of the trajectory; its `bootstrap` is true, and all other
        columns are 0. The learner computes its value.
        """
        old_rows, segments, new_rows = self.extended()
        ends, size = self.ends[segments], len(self) + len(segments)
        columns = {}
        for name, column in self.items():
            columns[name] = grown = trees.zeros_like(column, size)
            trees.put(grown, old_rows, column)
            if name in self.after:
                trees.put(grown, new_rows, trees.index(self.after[name], segments))
            elif name in _SHARED:
                trees.put(grown, new_rows, trees.index(column, ends))
        columns[self.BOOTSTRAP] = np.zeros(size, np.bool_)
        columns[self.BOOTSTRAP][new_rows] = True
        return SampleBatch(columns, env_steps=self.env_steps)

    def copy(self) -> Fragment:
        """A fragment with its own copy of every array (the objects in an array of objects are shared)."""
        copied = super().copy()
        after = {name: trees.tree_map(np.copy, column) for name, column in self.after.items()}
        return Fragment(copied.to_dict(), self.ends.copy(), after, env_steps=copied._env_steps)

    def __getitem__(self, key: str | slice) -> Any:
        """A column, or for a slice a fragment; if the slice cuts a segment, `after` ends with the row after the cut.

        The columns of the fragment are views. A slice with a step other than 1 gives a `SampleBatch`.
        """
        part = super().__getitem__(key)
        if not isinstance(key, slice):
            return part
        start, stop, step = key.indices(len(self))
        if step != 1:
            return part
        stop = max(start, stop)
        first, past = np.searchsorted(self.ends, (start, stop))
        ends = self.ends[first:past] - start
        after = {name: trees.index(column, slice(first, past)) for name, column in self.after.items()}
        if len(part) and (not len(ends) or ends[-1] != len(part) - 1):
            ends = np.append(ends, len(part) - 1)
            after = {
                name: trees.concat([column, trees.index(self[name], slice(stop, stop + 1))])
                for name, column in after.items()
            }
        return Fragment(part.to_dict(), ends, after)

    def _trajectory_starts(self) -> np.ndarray:
        starts = super()._trajectory_starts()
        starts[self.starts] = True  # two segments of one trajectory may be copies, or not be consecutive
        return starts

    def _joined(self, columns: dict[str, Any], parts: Sequence[SampleBatch], env_steps: int | None) -> SampleBatch:
        fragments = [part for part in parts if isinstance(part, Fragment)]
        if len(fragments) < len(parts):
            return super()._joined(columns, parts, env_steps)
        offsets = np.cumsum([0, *map(len, fragments)])
        ends = np.concatenate([part.ends + offset for part, offset in zip(fragments, offsets, strict=False)])
        names = [name for name in self.after if all(name in part.after for part in fragments)]
        after = {name: trees.concat([part.after[name] for part in fragments]) for name in names}
        return Fragment(columns, ends, after, env_steps=env_steps)
