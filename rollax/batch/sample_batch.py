"""`SampleBatch`: rows of experience as named columns."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, Sequence, ValuesView
from typing import Any

import numpy as np

from rollax.batch.columns import (
    PER_SEQUENCE,
    MissingColumnError,
    as_column,
    check_alike,
    check_kind,
    codes,
    length_error,
    positions_of,
    whole_number,
)
from rollax.core import trees
from rollax.errors import BatchError


class SampleBatch(MutableMapping[str, Any]):
    """Columns of equal length, by name; `len(batch)` is the number of rows, not of columns.

    A column is an array, or a pytree (dict, tuple, list) of arrays, with one row per agent step. Arrays are copied only
    where a method says so: `batch[2:5]` holds views.

    A *padded* batch, as `sequences` makes it, also has the column `seq_lens`: its rows are then `len(seq_lens)`
    sequences of equal length. Sequence i has `seq_lens[i]` real rows and then padding. The columns `seq_lens`,
    `state_in` and `burn_in` have one row per sequence.

    The column `bootstrap` is true for rows that hold the observation after a trajectory segment, without a step.

    Args:
        columns: the columns by name. Lists of plain numbers become arrays; `infos` becomes an array of objects.
        env_steps: environment steps of these rows; None: the number of rows that are steps, neither padding nor
            bootstrap.
    Raises:
        BatchError: the columns disagree in length, or a column has no rows to count.
    """

    OBS = "obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    NEW_OBS = "new_obs"
    INFOS = "infos"
    EPS_ID = "eps_id"
    TRAJECTORY_ID = "trajectory_id"
    OFF_POLICY = "off_policy"
    AGENT_ID = "agent_id"
    T = "t"
    SLOT = "slot"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"
    ACTION_LOGP = "action_logp"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    VF_PREDS = "vf_preds"
    CRITIC_OBS = "critic_obs"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    SEQ_LENS = "seq_lens"
    BOOTSTRAP = "bootstrap"
    WEIGHTS = "weights"
    DISCOUNTS = "discounts"
    TARGET_STEPS = "target_steps"
    TARGET_ROWS = "target_rows"
    BURN_IN = "burn_in"
    TARGET = "target"
    Q_VALUE = "q_value"
    TD_ERROR = "td_error"
    INDICES = "indices"
    PRIORITIES = "priorities"

    def __init__(self, columns: Mapping[str, Any] | None = None, *, env_steps: int | None = None) -> None:
        self._columns: dict[str, trees.Tree] = {}
        self._count: int | None = None
        self._env_steps = None if env_steps is None else whole_number(env_steps, 0, "SampleBatch(env_steps=...)")
        columns = {} if columns is None else columns
        if not hasattr(columns, "items"):  # a table of pandas has this method too
            raise BatchError("A batch is made of named columns.", "SampleBatch(...)", type(columns).__name__).expected(
                "a dict, name -> an array or list with one row per step",
                "collect the values of all steps under the name of their column",
            )
        if self.SEQ_LENS in columns:
            self[self.SEQ_LENS] = columns[self.SEQ_LENS]
        for name, value in columns.items():
            if name != self.SEQ_LENS:
                self[name] = value

    @property
    def count(self) -> int:
        """Number of rows, padding included."""
        return self._count or 0

    @property
    def agent_steps(self) -> int:
        """Number of rows that are steps, neither padding nor bootstrap."""
        if self.BOOTSTRAP in self:
            return int(np.count_nonzero(self.mask() & ~self[self.BOOTSTRAP]))
        return self.count if self.seq_lens is None else int(self.seq_lens.sum())

    @property
    def env_steps(self) -> int:
        """Environment steps of these rows; for a part of a batch, such as a slice, its `agent_steps`."""
        return self.agent_steps if self._env_steps is None else self._env_steps

    @env_steps.setter
    def env_steps(self, steps: int) -> None:
        self._env_steps = whole_number(steps, 0, "SampleBatch.env_steps")

    @property
    def seq_lens(self) -> np.ndarray | None:
        """[number of sequences] real rows of each sequence of a padded batch; None for any other batch."""
        return self._columns.get(self.SEQ_LENS)

    @property
    def max_seq_len(self) -> int:
        """Rows per sequence of a padded batch, padding included; 1 for any other batch."""
        return 1 if self.seq_lens is None else self.count // max(len(self.seq_lens), 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; of an array of objects only the references count."""
        return sum(leaf.nbytes for column in self._columns.values() for leaf in trees.leaves(column))

    def mask(self) -> np.ndarray:
        """[count] bool: True for a real row, False for padding."""
        if self.seq_lens is None:
            return np.ones(self.count, dtype=bool)
        return (np.arange(self.max_seq_len) < self.seq_lens[:, None]).ravel()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    # Mapping's own views would take len(self), the number of rows, for the number of columns.
    def keys(self) -> KeysView[str]:
        return self._columns.keys()

    def values(self) -> ValuesView[Any]:
        return self._columns.values()

    def items(self) -> ItemsView[str, Any]:
        return self._columns.items()

    def __eq__(self, other: object) -> bool:
        # Mapping's comparison would need the truth value of arrays.
        return self is other

    def __repr__(self) -> str:
        return f"{type(self).__name__}(count={self.count}, columns={list(self._columns)})"

    def __getitem__(self, key: str | slice) -> Any:
        if isinstance(key, slice):
            self._refuse_padded("A slice of rows")
            return SampleBatch({name: trees.index(column, key) for name, column in self._columns.items()})
        if isinstance(key, str):
            if key in self._columns:
                return self._columns[key]
            raise MissingColumnError("The batch does not have this column.", "SampleBatch", key).expected(
                f"one of {list(self._columns)}",
                "use terminateds and truncateds, which are separate"
                if key == "dones"
                else "sampling fills the columns in batch_columns of the policy; its postprocessing may add others",
            )
        raise BatchError("The index is neither a column name nor a slice of rows.", "SampleBatch", key).expected(
            'batch["rewards"] or batch[2:5]', "use batch.rows([...]) for single rows"
        )

    def __setitem__(self, name: str, value: Any) -> None:
        if name == self.SEQ_LENS and self._columns:
            raise BatchError(
                "`seq_lens` cannot be added to a batch or replaced: the other columns are padded by it.", "SampleBatch"
            ).fix("make the batch with sequences(), or give seq_lens to the constructor")
        column = as_column(name, value)
        lengths = {len(leaf) for leaf in trees.leaves(column)}
        if len(lengths) > 1:
            raise BatchError(
                "The arrays of one column differ in length.", f"column {name!r}", f"lengths {sorted(lengths)}"
            ).expected("one length for all", "give every array of the column one row per step")
        if lengths:
            self._check_length(name, lengths.pop())
        self._columns[name] = column

    def __delitem__(self, name: str) -> None:
        if name == self.SEQ_LENS and len(self._columns) > 1:
            raise BatchError("`seq_lens` cannot be deleted: the other columns are padded by it.", where="SampleBatch")
        del self._columns[name]

    def to_dict(self) -> dict[str, Any]:
        """A new dict of the same arrays."""
        return dict(self._columns)

    def copy(self) -> SampleBatch:
        """A batch with its own copy of every array (the objects in an array of objects are shared)."""
        copied = {name: trees.tree_map(np.copy, column) for name, column in self._columns.items()}
        return SampleBatch(copied, env_steps=self._env_steps)

    def rows(self, index: Any) -> SampleBatch:
        """A copy of the rows at an array of positions, in the order of the array, or of the rows that a mask selects.

        Raises:
            BatchError: the index is neither an array of positions nor a mask, or the batch is padded.
        """
        self._refuse_padded("A choice of rows")
        positions = positions_of(index, self.count)
        return SampleBatch({name: trees.index(column, positions) for name, column in self._columns.items()})

    def shuffled(self, rng: np.random.Generator | int) -> SampleBatch:
        """A copy with the rows in random order; for a padded batch, with the sequences in random order.

        Shuffled rows no longer form segments: call `transitions()` of a `Fragment` first.

        Args:
            rng: the random generator, or a seed.
        Raises:
            BatchError: the batch is not padded and has bootstrap rows, which belong to the rows before them.
        """
        self._refuse_bootstrap("Shuffling rows")
        shuffled = self._parts_at(np.random.default_rng(rng).permutation(self._parts))
        shuffled._env_steps = self._env_steps
        return shuffled

    def minibatches(self, size: int, rng: np.random.Generator | int | None = None) -> Iterator[SampleBatch]:
        """Parts of `size` rows, each row in one part; the last part has the remaining rows.

        Args:
            size: rows per part. A part of a padded batch has as many whole sequences as fit into `size` rows, padding
                included, and at least one sequence.
            rng: a random generator or a seed, for rows (or sequences) in random order. None keeps the order of the
                batch: the parts are slices, which for a `Fragment` are fragments; parts of a padded batch are copies.
        Raises:
            BatchError: `size` is not an integer of at least 1, or the batch is not padded and has bootstrap rows.
        """
        step = max(whole_number(size, 1, "minibatches(size)") // max(self.max_seq_len, 1), 1)
        self._refuse_bootstrap("Minibatches of rows")
        starts = range(0, self._parts, step)
        if rng is None and self.seq_lens is None:
            return (self[start : start + step] for start in starts)
        order = np.arange(self._parts) if rng is None else np.random.default_rng(rng).permutation(self._parts)
        return (self._parts_at(order[start : start + step]) for start in starts)

    def split_by_episode(self) -> list[SampleBatch]:
        """One batch per episode, or per episode and agent if there is a column `agent_id`.

        The batches are in the order of their first rows. Rows of one episode need not be neighbours; they keep their
        order. The batches have copies of the rows.

        Raises:
            BatchError: there is no column `eps_id`, or the batch is padded.
        """
        self._refuse_padded("Splitting by episode")
        group = codes(self[self.EPS_ID])
        if self.AGENT_ID in self:
            agent = codes(self[self.AGENT_ID])
            group = group * (agent.max(initial=0) + 1) + agent
        order = np.argsort(group, kind="stable")
        ordered, changes = self.rows(order), np.diff(group[order], prepend=-1)
        starts = np.flatnonzero(changes)
        ends = np.append(starts[1:], self.count)
        # The sort is stable, so the first row of a group is its first appearance.
        return [ordered[starts[i] : ends[i]] for i in np.argsort(order[starts])]

    def sequences(self, max_seq_len: int) -> SampleBatch:
        """A padded copy for recurrent policies: rows cut into sequences, each filled up with zeros to `max_seq_len`.

        A sequence ends after `max_seq_len` rows, and at the end of a trajectory: before a row with another
        `trajectory_id`, `eps_id` or `agent_id`; after a row that is terminated, truncated or a bootstrap row; and
        before a row whose `t` does not grow, as where a batch has the same fragment twice. In a `Fragment` a sequence
        also ends with its segment. Rows of one trajectory must be neighbours, in time order.

        Args:
            max_seq_len: rows per sequence, at least 1.
        Returns:
            A batch of `len(seq_lens) * max_seq_len` rows; its `state_in` has the states of each sequence's first row.
        Raises:
            BatchError: there is no column `eps_id`, the batch is already padded, or `max_seq_len` is not an integer of
                at least 1.
        """
        from rollax.batch.sequences import padded_columns  # loaded only where it is used

        self._refuse_padded("Cutting into sequences")
        length = whole_number(max_seq_len, 1, "sequences(max_seq_len)")
        return SampleBatch(padded_columns(self, length, self._trajectory_starts()), env_steps=self._env_steps)

    @staticmethod
    def concat_samples(batches: Iterable[Any]) -> Any:
        """The rows of all the batches, one after another: a SampleBatch, or for MultiAgentBatches a MultiAgentBatch.

        The rows of several batches are copied; for a single batch the result has the same arrays.

        Raises:
            BatchError: there is no batch, both kinds are mixed, or columns differ in name, structure or row shape.
        """
        parts = list(batches)
        kind: Any = type(parts[0]) if parts else SampleBatch
        if not issubclass(kind, SampleBatch) and hasattr(kind, "concat_samples"):
            return kind.concat_samples(parts)
        check_kind(parts, SampleBatch)
        return concatenated(parts, "concat_samples")

    def _joined(self, columns: dict[str, Any], parts: Sequence[SampleBatch], env_steps: int | None) -> SampleBatch:
        """The batch of the concatenated columns of `parts`; this batch is the first part."""
        return SampleBatch(columns, env_steps=env_steps)

    def _trajectory_starts(self) -> np.ndarray:
        """[count] bool: the rows where a new sequence must begin."""
        from rollax.batch.sequences import trajectory_starts  # loaded only where it is used

        return trajectory_starts(self)

    @property
    def _parts(self) -> int:
        """Number of sequences of a padded batch; number of rows of any other batch."""
        return self.count if self.seq_lens is None else len(self.seq_lens)

    def _parts_at(self, positions: np.ndarray) -> SampleBatch:
        """A copy of the sequences of a padded batch, or of the rows of any other batch, at these positions."""
        if self.seq_lens is None:
            return self.rows(positions)
        rows = (positions[:, None] * self.max_seq_len + np.arange(self.max_seq_len)).ravel()
        columns = self._columns.items()
        return SampleBatch({name: trees.index(c, positions if name in PER_SEQUENCE else rows) for name, c in columns})

    def _refuse_bootstrap(self, what: str) -> None:
        if self.seq_lens is None and np.any(self.get(self.BOOTSTRAP, False)):
            raise BatchError(
                f"{what} would separate bootstrap rows from their segments.",
                "SampleBatch",
                f"{np.count_nonzero(self[self.BOOTSTRAP])} bootstrap rows",
            ).expected(
                "rows that are all steps, or sequences", 'call sequences() first, or: batch.rows(~batch["bootstrap"])'
            )

    def _refuse_padded(self, what: str) -> None:
        if self.seq_lens is not None:
            raise BatchError(
                f"{what} would split the sequences of a padded batch.",
                "SampleBatch",
                f"{len(self.seq_lens)} sequences of {self.max_seq_len} rows",
            ).expected("a batch without seq_lens", "do it before sequences()")

    def _check_length(self, name: str, length: int) -> None:
        padded = self.seq_lens
        if name == self.SEQ_LENS:
            return
        if padded is not None and name in PER_SEQUENCE:
            if length != len(padded):
                raise length_error(name, length, f"{len(padded)} rows, one per sequence")
        elif self._count is None:
            if padded is not None:
                per_sequence, rest = divmod(length, max(len(padded), 1))
                if rest or per_sequence < padded.max(initial=0) or (length and not len(padded)):
                    raise length_error(
                        name, length, f"{len(padded)} sequences, each of {padded.max(initial=0)} or more"
                    )
            self._count = length
        elif length != self._count:
            raise length_error(name, length, f"{self._count} rows, as in {list(self._columns)}")


def concatenated(batches: Sequence[SampleBatch], where: str) -> SampleBatch:
    """The rows of all the batches, one after another; errors name `where`."""
    first = batches[0]
    for position, batch in enumerate(batches[1:], start=1):
        check_alike(first, batch, f"{where}: batch {position} of {len(batches)}, against batch 0")
    columns = {name: trees.concat([batch[name] for batch in batches]) for name in first}
    known = any(batch._env_steps is not None for batch in batches)
    return first._joined(columns, batches, sum(batch.env_steps for batch in batches) if known else None)
