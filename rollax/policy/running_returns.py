"""`RunningReturns`: running moments of discounted sums of rewards, by which rewards are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollax.batch import SampleBatch
from rollax.core.running_statistics import LARGEST, RunningMoments
from rollax.core.stored_values import read_array, read_value
from rollax.ops.advantages import running_sums

_PARTS = {"slots": np.int64, "streams": np.int64, "sums": np.float64}


class RunningReturns(RunningMoments):
    """Moments of the discounted sums R ← γ R + r, one sum for each slot of the sampler, after every reward.

    Rewards divided by the `deviation` of these sums have a similar scale in all tasks. The moments are merged over
    workers; the sums stay in the process that samples.

    Source: if `episodic`, VecNormalize of Stable-Baselines3 (Raffin et al., 2021); otherwise Burda et al. (2018),
        section 2.4, arXiv:1810.12894. Deviations: all rewards of a fragment are added before any reward is scaled.

    Args:
        gamma: γ in [0, 1].
        episodic: whether the sum of a slot starts at 0 in each trajectory; otherwise it continues over trajectories.
        column: the column of sampled rows that is summed, such as `rewards`: the policy adds each fragment, before
            `prepare` of its algorithm. None: the algorithm calls `add_rewards`.
    """

    part_names: ClassVar[tuple[str, ...]] = (*RunningMoments.part_names, LARGEST)

    def __init__(self, gamma: float, *, episodic: bool = True, column: str | None = None) -> None:
        super().__init__()
        self.gamma, self.episodic, self.column = gamma, episodic, column
        self._sums: dict[int, tuple[int, float]] = {}  # slot -> (trajectory id if episodic, else slot; latest sum)
        self._largest = np.zeros(2)  # index 0 is for all sums, index 1 for the recent sums

    @property
    def largest(self) -> NDArray[np.float64]:
        """[] the largest |R| so far; 0 before the first reward."""
        return np.array(self._largest[0])

    def add_rewards(self, rows: SampleBatch, rewards: NDArray[np.floating]) -> None:
        """Adds N sums, one after each of [N] rewards.

        Args:
            rows: N rows with the column `slot`, and `trajectory_id` if the sums are episodic.
            rewards: [N] rewards of these rows.
        """
        if self.frozen or not len(rows):
            return
        order = np.argsort(rows[SampleBatch.SLOT], kind="stable")
        slots = rows[SampleBatch.SLOT][order]
        streams = rows[SampleBatch.TRAJECTORY_ID][order] if self.episodic else slots
        ends = np.flatnonzero(np.append(streams[1:] != streams[:-1], True))
        before = self.latest(slots[ends], streams[ends])
        sums = running_sums(np.asarray(rewards)[order], before, gamma=self.gamma, ends=ends)
        self.update(sums)
        latest = zip(streams[ends].tolist(), sums[ends].tolist(), strict=True)
        self._sums |= dict(zip(slots[ends].tolist(), latest, strict=True))

    def latest(self, slots: NDArray[np.integer], trajectories: NDArray[np.integer]) -> NDArray[np.float64]:
        """[N] the latest sum of each slot; 0 if the slot, or its trajectory if `episodic`, has no rewards so far."""
        streams = trajectories if self.episodic else slots
        found = [self._sums.get(slot, (-1, 0.0)) for slot in slots.tolist()]
        return np.array([total if stream == own else 0.0 for own, (stream, total) in zip(streams, found, strict=True)])

    def summary(self) -> dict[str, NDArray[np.float32]]:
        return {**super().summary(), LARGEST: self.largest.astype(np.float32)}

    def update(self, rows: ArrayLike) -> None:
        super().update(rows)
        if not self.frozen and np.size(rows):
            self._largest = np.maximum(self._largest, np.abs(rows).max())

    def arrays(self, *, recent: bool = False) -> tuple[NDArray, ...]:
        return *super().arrays(recent=recent), np.array(self._largest[int(recent)])

    def set_arrays(self, count: NDArray, mean: NDArray, squares: NDArray, *others: NDArray) -> None:
        super().set_arrays(count, mean, squares)
        self._largest = np.array([float(others[0]), 0.0])

    def add(self, count: NDArray, mean: NDArray, squares: NDArray, *others: NDArray, recent: bool) -> None:
        super().add(count, mean, squares, recent=recent)
        self._largest = np.maximum(self._largest, np.array([1.0, float(recent)]) * float(others[0]))

    def clear_recent(self) -> None:
        super().clear_recent()
        self._largest = np.array([self._largest[0], 0.0])

    def get_sums(self) -> dict[str, NDArray]:
        """Returns the latest sum of each slot, for the checkpoint of a process that samples."""
        rows = [(slot, stream, total) for slot, (stream, total) in self._sums.items()]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        return {name: np.array(column, kind) for (name, kind), column in zip(_PARTS.items(), columns, strict=True)}

    def set_sums(self, state: Mapping[str, Any], where: str) -> None:
        """Restores what `get_sums` returned; raises CheckpointError for an invalid state."""
        count = np.size(read_value(state, "slots", where))
        columns = (read_array(state, name, where, shape=(count,), dtype=kind) for name, kind in _PARTS.items())
        self._sums = {slot: (stream, total) for slot, stream, total in zip(*(c.tolist() for c in columns), strict=True)}
