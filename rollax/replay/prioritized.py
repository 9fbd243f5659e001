"""A replay buffer that draws transitions by their last error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.core.stored_values import read_array, read_number, wrong_value
from rollax.errors import NonFiniteError
from rollax.replay.frames import StackedFrames
from rollax.replay.replay import by_index, check_range
from rollax.replay.sum_tree import SumTree
from rollax.replay.uniform import UniformReplay


class PrioritizedReplay(UniformReplay):
    """Draws transitions, or sequences, in proportion to a power of their last error.

    Source: Schaul et al. (2016), arXiv:1511.05952, the proportional variant. Eq. 1: P(i) = p_i^α / Σ_k p_k^α with
        p_i = |δ_i| + ε; new transitions get the largest priority so far (Algorithm 1); section 3.4: importance weights
        w_i = (1/N · 1/P(i))^β / max_i w_i. Deviations: the maximum is over the drawn batch, not over the buffer.
        Sequences: Kapturowski et al. (2019), "Recurrent experience replay in distributed reinforcement learning",
        section 2.3. All rows by which a sequence is drawn have its priority.

    If `columns` names `priorities`, that column of the added fragments holds the first errors (Ape-X: Horgan
    et al. (2018), arXiv:1803.00933, Algorithm 1).

    Args:
        capacity, gamma, n_step, columns, frames, where: as for `UniformReplay`.
        alpha: α: 0 draws uniformly, 1 in proportion to the errors.
        eps: ε > 0, which is added to the absolute error.
    Raises:
        ConfigError: a number out of range.
    """

    _own_bytes_per_slot = UniformReplay._own_bytes_per_slot + 10  # a leaf of the sum tree, and 1/7 of an inner node

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        gamma: float = 0.99,
        n_step: int | None = 1,
        columns: Sequence[str] = (),
        frames: StackedFrames | None = None,
        where: str = "replay buffer",
    ) -> None:
        check_range("alpha", alpha, alpha >= 0, "at least 0", where)
        check_range("eps", eps, eps > 0 and eps**alpha > 0, "more than 0, also to the power alpha", where)
        self.alpha, self.eps = alpha, eps
        self._errors_given = SampleBatch.PRIORITIES in columns
        self._largest = 1.0
        super().__init__(capacity, gamma=gamma, n_step=n_step, columns=columns, frames=frames, where=where)

    @property
    def total_priority(self) -> float:
        """The sum of p_i^α over all transitions."""
        return self._tree.total if len(self) else 0.0

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:
        """Sets the priorities of transitions; transitions that were overwritten since the draw are ignored.

        Args:
            indices: [K] `indices` of drawn transitions, or [K·L] of K sequences of L rows; for duplicates the last
                error counts, and negative indices are ignored.
            errors: [K] the TD errors δ of the transitions or sequences in the last update, with either sign.
        Raises:
            NonFiniteError: an error is not finite, or overflows when raised to the power α.
        """
        self._finish()
        sizes = np.asarray(by_index(errors, indices), np.float64)
        slots, there = self._rows.links.slots_of(np.asarray(indices))
        there &= self._drawable[slots]
        priorities = self._priorities(sizes)
        self._set(slots[there], priorities[there])

    def get_priorities(self) -> dict[str, Any]:
        """The priorities only, for a buffer whose rows are stored elsewhere."""
        filled = self._rows.links.filled
        priorities = {"priorities": self._tree.leaves[:filled].copy()} if filled else {}
        return {**priorities, "largest_priority": self._largest, "alpha": self.alpha}

    def check_priorities(self, state: Mapping[str, Any]) -> None:
        """Raises the CheckpointError of `set_priorities` for this state; nothing is changed."""
        self._stored_priorities(state, self._rows.links.filled)

    def set_priorities(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_priorities` of a buffer with these rows returned; {} restores the initial priorities.

        `alpha` may differ, as for `set_state`. Raises CheckpointError if the rows differ.
        """
        self._largest, priorities = self._stored_priorities(state, self._rows.links.filled)
        self._tree.set(np.flatnonzero(self._drawable), self._largest**self.alpha)
        self._restore_priorities(priorities)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), **self.get_priorities()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        self._stored_priorities(state, len(state.get("whole", ())))

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Like `UniformReplay.set_state`; `alpha` may differ too, and priorities then have the new exponent."""
        self.check_state(state)
        self._largest, priorities = self._stored_priorities(state, len(state.get("whole", ())))
        super().set_state(state)
        self._restore_priorities(priorities)

    def _stored_priorities(self, state: Mapping[str, Any], slots: int) -> tuple[float, NDArray[np.float64]]:
        """The largest priority so far (1 if a uniform buffer saved the state), and [slots] p_i^α (0: not known)."""
        alpha, largest = (
            read_number({"alpha": self.alpha, "largest_priority": 1.0, **state}, key, self.where)
            for key in ("alpha", "largest_priority")
        )
        priorities = np.zeros(slots)
        with np.errstate(over="ignore", invalid="ignore"):
            if "priorities" in state and alpha > 0:  # with α = 0 all p_i^α are 1
                priorities = read_array(state, "priorities", self.where, shape=(slots,), dtype=np.float64)
                priorities = priorities if alpha == self.alpha else priorities ** np.divide(self.alpha, alpha)
            most = np.float64(largest) ** self.alpha * self.capacity  # the sum if all transitions were new
            fits = (priorities >= 0).all() and np.isfinite(priorities.sum() + most)
        if not fits:
            got = "numbers that are negative or not finite, or overflow"
            raise wrong_value(f"{self.where}: priorities", got, "numbers of at least 0 with a finite sum")
        return largest, priorities

    def _restore_priorities(self, priorities: NDArray[np.float64]) -> None:
        """Sets the priorities of transitions from [slots] p_i^α; where p_i^α is 0, the initial priority stays."""
        # Transitions that became drawable by a shorter window keep the initial priority.
        slots = np.flatnonzero(self._drawable[: len(priorities)] & (priorities > 0))
        if len(slots):
            self._tree.set(slots, priorities[slots])

    def _make_room(self) -> None:
        self._tree = SumTree(self.capacity)  # first: `_drawable`, made last, shows that all is allocated
        super()._make_room()

    def _begin(self, slots: NDArray[np.int64]) -> None:
        if self._errors_given:
            errors = self._rows.read(SampleBatch.PRIORITIES, slots)
            self._set(slots, self._priorities(errors.astype(np.float64)))
        else:
            self._tree.set(slots, self._largest**self.alpha)

    def _overwrite(self, slots: NDArray[np.int64]) -> None:
        super()._overwrite(slots)
        self._tree.set(slots, 0.0)

    def _reset_priorities(self) -> None:
        missing = np.flatnonzero(self._drawable & (self._tree.leaves <= 0))
        self._tree.set(np.flatnonzero(~self._drawable), 0.0)
        self._tree.set(missing, self._largest**self.alpha)

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.permutation(self._tree.sample(count, rng))  # minibatches are consecutive parts of the draw

    def _weights(self, slots: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        # N and the sum of all priorities cancel when dividing by the maximum.
        weights = self._tree.get(slots) ** -beta
        return (weights / weights.max()).astype(np.float32)

    def _priorities(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """[K] the priorities p_i for TD errors; raises NonFiniteError if one is not finite, or p_i^α overflows."""
        priorities = np.abs(errors) + self.eps
        largest = priorities.max(initial=0.0)  # NaN if one is
        with np.errstate(over="ignore"):
            fits = np.isfinite(largest) and np.isfinite(largest**self.alpha * self.capacity)
        if not fits:
            raise NonFiniteError(
                "The error of a row is not finite, or overflows when raised to the power α.",
                self.where,
                errors[np.argmax(priorities)],
            ).expected(
                f"finite numbers, also to the power {self.alpha:g}", "lower lr, or scale the rewards: learning diverges"
            )
        return priorities

    def _set(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        if len(slots):
            self._largest = max(self._largest, float(priorities.max()))
            self._tree.set(slots, priorities**self.alpha)
