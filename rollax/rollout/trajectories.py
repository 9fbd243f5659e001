"""The table of slots, and the trajectories of one policy as columns: one row per action, chosen or given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.env.rows import Rows
from rollax.errors import PolicyError
from rollax.policy.checks import check_dtypes
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.policy_memory import Inputs
from rollax.rollout.policy_rows import picked
from rollax.rollout.table import Index, Table

_EPISODE, _COMPLETE = "_episode", "_complete"
_TRAJECTORY = SampleBatch.TRAJECTORY_ID
_BOOKKEEPING = {
    _TRAJECTORY: np.int64,
    _EPISODE: np.int64,
    _COMPLETE: np.bool_,
    SampleBatch.REWARDS: np.float32,
    SampleBatch.TERMINATEDS: np.bool_,
    SampleBatch.TRUNCATEDS: np.bool_,
    SampleBatch.OFF_POLICY: np.bool_,
}
_OUTCOMES = _BOOKKEEPING.keys() - {_TRAJECTORY, _EPISODE}
"""Columns that are zero in unused rows, so that appending need not set them."""
_INPUTS = (SampleBatch.OBS, SampleBatch.STATE_IN, SampleBatch.PREV_ACTIONS, SampleBatch.PREV_REWARDS)


class SlotTable(Table):
    """One row per slot. The parts of a sampler add columns of their own.

    Columns:
        trajectory: the id of the trajectory, unique across workers and time.
        policy: an index into `policy_ids`.
        reward: the sum of the trajectory's rewards so far.
    Args:
        policy_ids: the ids of the policies.
        policy_of: as for a `Sampler`.
    """

    def __init__(self, policy_ids: Sequence[str], policy_of: Callable[..., str] | None) -> None:
        super().__init__(trajectory=0, policy=0, reward=0.0)
        self._ids, self._policy_of = list(policy_ids), policy_of

    def begin(self, rows: Rows, starting: np.ndarray, first: int, episodes: EpisodeTable) -> None:
        """Begins a trajectory in the slot of each of the [K] starting rows, with ids from `first` on."""
        slots = rows.slots[starting]
        self["trajectory"][slots] = np.arange(first, first + len(slots))
        self["reward"][slots] = 0.0
        if self._policy_of is not None:
            self["policy"][slots] = [self._choose(rows, row, episodes) for row in starting.tolist()]

    def _choose(self, rows: Rows, row: int, episodes: EpisodeTable) -> int:
        episode, agent = episodes.episode(int(rows.env_index[row])), rows.agent_of(row)
        policy_id = episode.policies.get(agent)
        if policy_id is None:
            assert self._policy_of is not None
            policy_id = episode.policies[agent] = self._policy_of(agent, episode)
        return self._ids.index(policy_id)


class Trajectories:
    """Appends a row for each action, and adds outcomes to the pending rows.

    A row is complete after its slot's next observation, or the end of its trajectory, has arrived; until then its
    rewards are summed. Rows that are not complete when a fragment is cut are carried over to the next one.

    Args:
        wanted: which of the columns `trajectory_id` and `off_policy` are in batches.
        slots: the table; a column with the row of each slot's last action is added.
        name: name of that column.
        reward_dtype: dtype of the column `rewards`.
    """

    def __init__(self, wanted: frozenset[str], slots: Table, name: str, *, reward_dtype: Any = np.float32) -> None:
        self._left_out = {_COMPLETE, *({_TRAJECTORY, SampleBatch.OFF_POLICY} - wanted)}
        self._columns: dict[str, trees.Tree] = {}
        self._given: Set[str] = frozenset()  # names of the columns that `append` gets
        self._dtypes = {**_BOOKKEEPING, SampleBatch.REWARDS: reward_dtype}
        self._capacity = 0
        self._size = 0
        self._slots, self._name = slots, name
        self._slots.add(name, -1)
        self._final_rows: list[np.ndarray] = []
        self._final_inputs: list[Inputs] = []

    def __len__(self) -> int:
        return self._size

    def append(
        self,
        slots: Index,
        trajectories: np.ndarray,
        episodes: np.ndarray,
        columns: Mapping[str, Any],
        off_policy: np.ndarray | None = None,
    ) -> None:
        """Appends one row for each slot, with its observation and action.

        Args:
            slots: [K] the acting slots.
            trajectories: [K] the id of each trajectory.
            episodes: [K] the id of each episode; -1 if it is not trained on.
            columns: columns of K rows; PolicyError unless names and kinds of dtypes are the same at every call.
            off_policy: indices of the rows with actions that the policy has not chosen.
        """
        count, start = len(trajectories), self._size
        if start + count > self._capacity:
            self._discard()
            start = self._size
            self._grow(start + count, columns)
        rows, end = self._columns, start + count
        if columns.keys() != self._given:
            raise PolicyError(
                "The columns of a policy differ from the columns of its first rows.",
                "extra_fetches of compute_actions",
                sorted(columns),
            ).expected(sorted(self._given), "return the same extra_fetches at every call, under names of their own")
        for name, values in columns.items():
            column = rows[name]
            check_dtypes(name, values, column)
            trees.put(column, slice(start, end), values)
        rows[_TRAJECTORY][start:end] = trajectories
        rows[_EPISODE][start:end] = episodes
        if off_policy is not None:
            rows[SampleBatch.OFF_POLICY][start + off_policy] = True
        self._pending[slots] = np.arange(start, end)
        self._size = end

    def record_rows(
        self,
        rows: Rows,
        selection: np.ndarray | None,
        inputs: Inputs,
        complete: Any,
        outcomes: np.ndarray | None,
        ended: np.ndarray | None,
        memories: tuple[np.ndarray, Inputs] | None = None,
    ) -> None:
        """Records the outcomes of one policy's rows of a poll, and the final inputs of trajectories that end there.

        Args:
            rows, selection, complete, outcomes, ended: as for `StepRecorder.observe`; `ended` None if none has.
            inputs: columns of the rows in `selection`.
            memories: the policy's rows whose trajectory has ended, in ascending order, and their final inputs from
                memory, such as the recurrent state; None for a policy without memory.
        """
        slots, rewards = rows.places(outcomes)[1], picked(rows.rewards, outcomes)
        if ended is None:
            self.record_outcomes(slots, rewards, complete)
            return
        terminateds, truncateds = picked(rows.terminateds, outcomes), picked(rows.truncateds, outcomes)
        self.record_outcomes(slots, rewards, complete | terminateds | truncateds, terminateds, truncateds)
        last = positions = ended
        if selection is not None:
            positions = np.isin(selection, ended).nonzero()[0]
            last = selection[positions]
        if len(last):
            final = trees.index(inputs, positions)
            if memories is not None:
                final |= trees.index(memories[1], np.searchsorted(memories[0], last))
            self.set_final_inputs(rows.slots[last], final)

    def record_outcomes(
        self,
        slots: Index,
        rewards: np.ndarray,
        complete: Any,
        terminateds: np.ndarray | None = None,
        truncateds: np.ndarray | None = None,
    ) -> None:
        """Records the outcomes of the latest actions of some distinct slots; slots without a pending row are ignored.

        Args:
            slots: [K] the slots.
            rewards: [K] added to the reward of the row.
            complete: [K], or one for all, whether an observation or the end has arrived, so that the row is complete.
            terminateds, truncateds: [K] whether the trajectory has terminated, or was truncated; None if none has.
        """
        columns = self._columns
        rows = self._pending[slots]
        if rows.min(initial=0) < 0:
            decided = rows >= 0
            rows, rewards = rows[decided], rewards[decided]
            if not len(rows):
                return
            complete, terminateds, truncateds = (
                one[decided] if isinstance(one, np.ndarray) else one for one in (complete, terminateds, truncateds)
            )
        columns[SampleBatch.REWARDS][rows] += rewards
        columns[_COMPLETE][rows] = complete
        if terminateds is not None:
            columns[SampleBatch.TERMINATEDS][rows] = terminateds
        if truncateds is not None:
            columns[SampleBatch.TRUNCATEDS][rows] = truncateds

    def forget(self, slots: np.ndarray) -> None:
        """Marks these slots as without a pending row, because their new trajectories have not acted yet."""
        self._pending[slots] = -1

    @property
    def _pending(self) -> np.ndarray:
        """The column with the row of each slot's last action."""
        return self._slots[self._name]

    def set_final_inputs(self, slots: np.ndarray, inputs: Inputs) -> None:
        """Stores the final inputs of trajectories that have just ended, before their slots are reused.

        `inputs` are columns of K rows; they are kept, so the caller must not write into them.
        """
        rows = self._pending[slots]
        decided = rows >= 0
        self._final_rows.append(rows[decided])
        self._final_inputs.append(inputs if decided.all() else trees.index(inputs, decided))

    def drop(self, episodes: np.ndarray) -> None:
        """Drops the rows of these episodes, whose outcomes will not arrive."""
        if self._size:
            episode = self._columns[_EPISODE][: self._size]
            lost = np.isin(episode, episodes)
            episode[lost] = -1
            self._columns[_COMPLETE][: self._size][lost] = True

    def cut(
        self, next_inputs_of: Callable[[np.ndarray], Inputs], finished: np.ndarray | None = None
    ) -> Fragment | None:
        """Removes the complete rows and returns them, sorted by trajectory and in time order inside each.

        Args:
            next_inputs_of: trajectories -> columns of their pending inputs.
            finished: the episodes whose rows are taken; None for all complete rows.
        Returns:
            A fragment with one segment per trajectory; None if no row can be taken.
        """
        size = self._size
        if size == 0:
            return None
        rows = {name: trees.index(column, slice(0, size)) for name, column in self._columns.items()}
        learned = rows[_EPISODE] >= 0
        taken = rows[_COMPLETE] & learned if finished is None else np.isin(rows[_EPISODE], finished)
        if not taken.any():
            self._discard()
            return None
        order = np.argsort(rows[_TRAJECTORY], kind="stable")
        trajectories = rows[_TRAJECTORY][order]
        continues = np.append(trajectories[1:] == trajectories[:-1], False)
        in_batch = taken[order]
        last = ~(continues & np.append(in_batch[1:], False))[in_batch]
        ends = np.flatnonzero(in_batch)[last]
        after = self._following(rows, order, ends, continues, next_inputs_of)
        picked = order[in_batch]
        columns = {name: trees.index(column, picked) for name, column in rows.items() if name not in self._left_out}
        columns[SampleBatch.EPS_ID] = columns.pop(_EPISODE)
        self._keep(np.flatnonzero(~taken & ~(rows[_COMPLETE] & ~learned)))
        return Fragment(columns, np.flatnonzero(last), after)

    def _following(
        self, rows: dict, order: np.ndarray, ends: np.ndarray, continues: np.ndarray, next_inputs_of: Callable
    ) -> Inputs:
        """The next inputs after the rows at positions `ends` of the sorted order."""
        end_rows = order[ends]
        inputs = {name: rows[name] for name in _INPUTS if name in rows}
        # A trajectory that ends without a last observation gets the observation of its last action instead.
        following = {name: trees.index(column, end_rows) for name, column in inputs.items()}
        carried = np.flatnonzero(continues[ends])
        if len(carried):
            trees.put(following, carried, {n: trees.index(c, order[ends[carried] + 1]) for n, c in inputs.items()})
        if self._final_rows:
            position = np.full(self._size, -1)
            final_rows = np.concatenate(self._final_rows)
            position[final_rows] = np.arange(len(final_rows))
            known = np.flatnonzero(position[end_rows] >= 0)
            if len(known):
                trees.put(following, known, trees.index(trees.concat(self._final_inputs), position[end_rows[known]]))
        over = (rows[SampleBatch.TERMINATEDS] | rows[SampleBatch.TRUNCATEDS])[end_rows]
        waiting = np.flatnonzero(~continues[ends] & ~over)
        if len(waiting):
            trees.put(following, waiting, next_inputs_of(rows[_TRAJECTORY][end_rows[waiting]]))
        return following

    def _discard(self) -> None:
        """Makes room: removes the complete rows that are not trained on."""
        if self._size:
            gone = self._columns[_COMPLETE][: self._size] & (self._columns[_EPISODE][: self._size] < 0)
            if gone.any():
                self._keep(np.flatnonzero(~gone))

    def _keep(self, kept: np.ndarray) -> None:
        """Moves the remaining rows to the front."""
        size, self._size = self._size, 0  # an interrupt here drops all rows, instead of mixing them
        new_place = np.full(size, -1)
        new_place[kept] = np.arange(len(kept))
        pending = self._pending
        pending[pending >= 0] = new_place[pending[pending >= 0]]
        if self._final_rows:
            places, inputs = new_place[np.concatenate(self._final_rows)], trees.concat(self._final_inputs)
            staying = places >= 0
            self._final_rows = [places[staying]] if staying.any() else []
            self._final_inputs = [trees.index(inputs, staying)] if staying.any() else []
        if len(kept):
            for column in self._columns.values():
                trees.copy_into(column, 0, trees.index(column, kept))
        for name in _OUTCOMES:
            self._columns[name][len(kept) : size] = 0
        self._size = len(kept)

    def _grow(self, needed: int, columns: Mapping[str, Any]) -> None:
        if self._columns and needed <= self._capacity // 2:
            return  # discarding has made enough room
        capacity = max(needed, 2 * self._capacity, 256)
        if not self._columns:
            empty = {name: np.empty(0, dtype) for name, dtype in self._dtypes.items()}
            self._given = columns.keys() - empty.keys()
            self._columns = {**empty, **{name: trees.index(column, slice(0, 0)) for name, column in columns.items()}}
        grown = {name: trees.empty_like(column, capacity) for name, column in self._columns.items()}
        for name, column in self._columns.items():
            trees.copy_into(grown[name], 0, trees.index(column, slice(0, self._size)))
        for name in _OUTCOMES:
            grown[name][self._size :] = 0
        self._columns, self._capacity = grown, capacity
