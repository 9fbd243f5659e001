"""A replay buffer that draws the more often the larger a transition's error was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.errors import NonFiniteError
from rollax.replay.frames import StackedFrames
from rollax.replay.sum_tree import SumTree
from rollax.replay.uniform import UniformReplay, check_range
from rollax.state import array, entry, number, wrong


class PrioritizedReplay(UniformReplay):
    """Draws transitions in proportion to a power of their last error.

    Source: Schaul et al. (2016), arXiv:1511.05952, the proportional variant. Eq. 1: P(i) = p_i^α / Σ_k p_k^α with
        p_i = |δ_i| + ε; new transitions get the largest priority so far (Algorithm 1); section 3.4: importance weights
        w_i = (1/N · 1/P(i))^β / max_i w_i. Deviations: the maximum is that of the drawn batch, not of the buffer.

    Where the batches that are added have a column `priorities` and `columns` names it, these are the errors that
    transitions begin with (Ape-X: Horgan et al. (2018), arXiv:1803.00933, Algorithm 1).

    Args:
        capacity: places for rows, as for `UniformReplay`, as are `gamma`, `n_step`, `columns`, `frames` and `where`.
        alpha: α: 0 draws uniformly, 1 in proportion to the errors.
        eps: ε: how likely transitions without an error still are.
    Raises:
        ConfigError: a number out of range.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        gamma: float = 0.99,
        n_step: int = 1,
        columns: Sequence[str] = (),
        frames: StackedFrames | None = None,
        where: str = "replay buffer",
    ) -> None:
        check_range("alpha", alpha, alpha >= 0, "at least 0", where)
        check_range("eps", eps, eps > 0, "more than 0", where)
        self.alpha, self.eps = alpha, eps
        self._errors_given = SampleBatch.PRIORITIES in columns
        self._largest = 1.0
        super().__init__(capacity, gamma=gamma, n_step=n_step, columns=columns, frames=frames, where=where)

    @property
    def total_priority(self) -> float:
        """The sum over all transitions of what they are drawn in proportion to: p_i^α."""
        return self._tree.total if len(self) else 0.0

    def update_priorities(self, indices: NDArray[np.integer], errors: NDArray[np.floating]) -> None:
        """Sets how likely transitions are to be drawn; what has been given up since it was drawn is left alone.

        Args:
            indices: [K] `indices` of what was drawn; of one that is named several times the last error holds.
            errors: [K] the error δ that each had when it was learned from, of either sign.
        Raises:
            NonFiniteError: an error is not a finite number.
        """
        self._finish()
        places, there = self._rows.links.places_of(np.asarray(indices))
        there &= self._drawable[places]
        priorities = self._priorities(np.asarray(errors, np.float64))
        self._set(places[there], priorities[there])

    def get_state(self) -> dict[str, Any]:
        """Everything, as arrays and values that JSON can hold."""
        state = super().get_state()
        if state:
            state["priorities"] = self._tree.leaves[: self._rows.links.filled].copy()
        return {**state, "largest_priority": self._largest, "alpha": self.alpha}

    def check_state(self, state: Mapping[str, Any]) -> None:
        super().check_state(state)
        for key in {"largest_priority", "alpha"} & state.keys():
            number(state, key, self.where)
        if "priorities" in state:
            expected = np.shape(entry(state, "whole", self.where))
            priorities = array(state, "priorities", self.where, shape=expected, dtype=np.float64)
            if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
                raise wrong(
                    f"{self.where}: priorities", "numbers that are negative or not finite", "numbers of at least 0"
                )

    def set_state(self, state: Mapping[str, Any]) -> None:
        """As `UniformReplay.set_state`; `alpha` may differ too, and priorities are then to the power of the new one.

        Raises:
            CheckpointError: it does not fit this buffer.
            ConfigError: the capacity is larger than the memory.
        """
        self.check_state(state)
        self._largest = float(state.get("largest_priority", 1.0))  # what a uniform buffer has saved has none
        super().set_state(state)
        alpha = float(state.get("alpha", self.alpha))
        if "priorities" in state and alpha > 0:  # with α = 0 all were alike: nothing tells what their errors were
            # Transitions that a shorter window has made drawable keep the priority of new ones.
            had_one = self._drawable[: len(state["priorities"])] & (state["priorities"] > 0)
            places = np.flatnonzero(had_one)
            weights = state["priorities"][places]
            self._tree.set(places, weights if alpha == self.alpha else weights ** (self.alpha / alpha))

    def _own_bytes_per_place(self) -> int:
        return super()._own_bytes_per_place() + 10  # eight for the leaf of the sum tree, and one in seven above it

    def _make_room(self) -> None:
        self._tree = SumTree(self.capacity)  # first: that there is room is seen by what follows
        super()._make_room()

    def _begin(self, places: NDArray[np.int64]) -> None:
        if self._errors_given:
            errors = self._rows.columns.read_column(SampleBatch.PRIORITIES, places)
            self._set(places, self._priorities(errors.astype(np.float64)))
        else:
            self._tree.set(places, self._largest**self.alpha)

    def _give_up(self, places: NDArray[np.int64]) -> None:
        super()._give_up(places)
        self._tree.set(places, 0.0)

    def _weigh_anew(self) -> None:
        missing = np.flatnonzero(self._drawable & (self._tree.leaves <= 0))
        self._tree.set(np.flatnonzero(~self._drawable), 0.0)
        self._tree.set(missing, self._largest**self.alpha)

    def _draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.permutation(self._tree.sample(count, rng))  # what is drawn may be learned from part by part

    def _weights(self, places: NDArray[np.int64], beta: float) -> NDArray[np.float32]:
        # N and the sum of all priorities are the same for all, so dividing by the maximum leaves neither.
        weights = self._tree.get(places) ** -beta
        return (weights / weights.max()).astype(np.float32)

    def _priorities(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """[K] p_i.

        Raises:
            NonFiniteError: an error is not a finite number.
        """
        if not np.isfinite(errors).all():
            raise NonFiniteError(
                "An error that is to be a priority is no finite number.",
                where=self.where,
                got=errors[~np.isfinite(errors)][0],
                expected="finite numbers",
                fix="look for the update that made them: a learning rate too high, or rewards that are too large",
            )
        return np.abs(errors) + self.eps

    def _set(self, places: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        if len(places):
            self._largest = max(self._largest, float(priorities.max()))
            self._tree.set(places, priorities**self.alpha)
