"""A block: T polls of N sub-environments that step together, as arrays [T, N], and its division into segments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.errors import PolicyError
from rollax.policy.checks import check_dtypes


class Outcomes(NamedTuple):
    """The outcomes of the actions of a block.

    Args:
        rewards: [T, N, A] float64, one for each of the A agents of a sub-environment; 0 where there was no step.
        terminateds, truncateds: [T, N] whether the step terminated or truncated the episode.
        begins: [T, N] whether an episode begins after the poll.
        steps: [T, N] true for steps of episodes, false for resets, missing rows and dropped episodes; None: all true.
    """

    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    begins: np.ndarray
    steps: np.ndarray | None = None

    @property
    def over(self) -> np.ndarray:
        """[T, N] whether an episode ended."""
        return self.terminateds | self.truncateds


class Segments(NamedTuple):
    """The parts of episodes in a block, sorted by sub-environment and by time inside each.

    For example, let a block have T = 4 polls and N = 2 sub-environments. The first sub-environment ends an episode with
    its second step and begins another one. Then there are S = 3 segments: `place` is [[0, 2], [0, 2], [1, 2], [1, 2]],
    `first` [0, 2], `last` [1, 2], `ended` [0], `begun` [1], `env_index` [0, 0, 1], `start` [0, 2, 0] and `length`
    [2, 2, 4].

    Args:
        place: [T, N] the segment of each poll.
        first: [N] the first segment of each sub-environment: it continues the episode of the previous block.
        last: [N] the last segment of each sub-environment.
        ended: the segments whose episode ends in the block, in the order of the ends.
        begun: the segments whose episode begins in the block, in the order of the beginnings.
        env_index: [S] the sub-environment of each segment.
        start: [S] the first poll of each segment; T if its episode begins after the last poll.
        length: [S] the number of steps of each segment in the block.
    """

    place: np.ndarray
    first: np.ndarray
    last: np.ndarray
    ended: np.ndarray
    begun: np.ndarray
    env_index: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @classmethod
    def of(cls, outcomes: Outcomes) -> Segments:
        """The segments of a block."""
        begins, over, steps = outcomes.begins, outcomes.over, outcomes.steps
        envs = begins.shape[1]
        number = begins.cumsum(axis=0)  # [T, N] how many episodes have begun in the block after each poll
        counts = number[-1] + 1
        last = counts.cumsum() - 1
        first = last - counts + 1
        after = first + number
        place = np.vstack((first, after[:-1]))
        begun_at, ended_at = begins.nonzero(), over.nonzero()
        begun = after[begun_at]
        start = np.zeros(last[-1] + 1, np.int64)
        start[begun] = begun_at[0] + 1
        length = np.bincount(place.ravel() if steps is None else place[steps], minlength=len(start))
        return cls(place, first, last, place[ended_at], begun, np.repeat(np.arange(envs), counts), start, length)

    def sums(self, values: np.ndarray, before: np.ndarray) -> np.ndarray:
        """[S, A] the sums of `values` [T, N, A] over each segment; first segments continue the sums `before` [N, A].

        Values are added one by one in time order, so that the rounding does not depend on where blocks end.
        """
        agents = np.arange(values.shape[2])
        places = np.vstack((self.first, self.place))[..., None] * len(agents) + agents
        sums = np.bincount(
            places.ravel(), np.concatenate((before[None], values)).ravel(), len(self.start) * len(agents)
        )
        return sums.reshape(-1, len(agents))

    def after(self, lengths: np.ndarray) -> np.ndarray:
        """[S] the steps of each episode before the block: `lengths` [N] for first segments, 0 for all others."""
        since = np.zeros(len(self.start), np.int64)
        since[self.first] = lengths
        return since

    def numbered(self, running: np.ndarray, following: int) -> tuple[np.ndarray, int]:
        """The trajectory ids [S, A], and the next unused id.

        First segments continue the trajectories `running` [N, A]; all others get ids from `following` on.
        """
        numbers = np.empty((len(self.start), running.shape[1]), np.int64)
        numbers[self.first] = running
        end = following + len(self.begun) * running.shape[1]
        numbers[self.begun] = np.arange(following, end).reshape(-1, running.shape[1])
        return numbers, end

    def rows(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(positions, steps)` of the R rows of the segments `order`, as arrays [R].

        Positions are in flat arrays [T · N, ...]. Steps count from 0 in each segment, whose polls are consecutive.
        """
        lengths = self.length[order]
        total = int(lengths.sum())
        step = np.arange(total) - np.repeat(lengths.cumsum() - lengths, lengths)
        envs = len(self.first)
        return np.repeat(self.start[order] * envs + self.env_index[order], lengths) + step * envs, step


class BlockColumns:
    """Arrays [T, N, ...] that are filled poll by poll, and used again for the next block.

    Args:
        envs: N.
        polls: T, which grows if there are more polls.
    """

    def __init__(self, envs: int, polls: int) -> None:
        self._envs, self._polls = envs, polls
        self._obs: trees.Tree = None
        self._columns: dict[str, trees.Tree] = {}
        self.rewards = np.zeros((polls, envs))
        self.terminateds, self.truncateds, self.begins = (np.zeros((polls, envs), bool) for _ in range(3))
        self.steps = np.ones((polls, envs), bool)

    def make_room(self, poll: int) -> None:
        """Doubles the arrays if they are too short for poll number `poll`, counted from 0."""
        if poll < self._polls:
            return
        for name in ("rewards", "terminateds", "truncateds", "begins"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        self.steps = np.concatenate((self.steps, np.ones_like(self.steps)))
        if self._columns:  # otherwise no action has been written: the block has begun with resets
            self._obs = trees.concat((self._obs, self._obs))
            self._columns = {name: trees.concat((column, column)) for name, column in self._columns.items()}
        self._polls *= 2

    def begin(self) -> None:
        """Begins a block; until outcomes are written, each poll is a step that ends no episode."""
        self.steps[:], self.terminateds[:], self.truncateds[:], self.begins[:] = True, False, False, False

    def put(self, poll: int, obs: trees.Tree, selection: np.ndarray | None, columns: dict[str, Any]) -> None:
        """Writes the observations of all sub-environments, and `columns` for the `selection` of them (None: all)."""
        if columns.keys() != self._columns.keys():
            self._make(obs, columns)
        trees.put(self._obs, poll, obs)
        for name, values in columns.items():
            column = self._columns[name]
            check_dtypes(name, values, column)
            trees.put(column, poll if selection is None else (poll, selection), values)

    def _make(self, obs: trees.Tree, columns: dict[str, Any]) -> None:
        """Allocates the columns, in the first poll; raises PolicyError if a later poll has other columns."""
        if self._columns:
            raise PolicyError(
                "The columns of a policy differ from the columns of its first call.",
                where="extra_fetches of compute_actions",
                got=sorted(columns),
                expected=sorted(self._columns),
                fix="return the same extra_fetches at every call, under names that no other column has",
            )
        shape = self._polls, self._envs

        def empty(leaf: np.ndarray) -> np.ndarray:
            return np.empty((*shape, *leaf.shape[1:]), leaf.dtype)

        self._obs = trees.tree_map(empty, obs)
        self._columns = {name: trees.tree_map(empty, column) for name, column in columns.items()}

    def first(self, name: str, selection: np.ndarray | None) -> trees.Tree:
        """A column of the first poll, for the sub-environments in `selection`; None: for all."""
        return trees.index(self._columns[name], 0 if selection is None else (0, selection))

    def outcomes(self, polls: int) -> Outcomes:
        """The outcomes of the first `polls` polls."""
        steps = self.steps[:polls]
        all_are_steps = np.count_nonzero(steps) == steps.size
        flags = self.terminateds[:polls], self.truncateds[:polls], self.begins[:polls]
        return Outcomes(self.rewards[:polls, :, None], *flags, None if all_are_steps else steps)

    def rows_of(self, rows: np.ndarray) -> dict[str, trees.Tree]:
        """Copies of some rows of all columns; `rows` [R] are their positions in flat arrays [T · N, ...]."""
        columns = {SampleBatch.OBS: self._obs, **self._columns}
        return trees.tree_map(lambda leaf: np.take(leaf.reshape(-1, *leaf.shape[2:]), rows, axis=0), columns)


def following(segments: Segments, chosen: np.ndarray, finals: list[trees.Tree], current: trees.Tree) -> trees.Tree:
    """The policy's inputs after the last row of each chosen segment: name -> [K, ...].

    Args:
        segments: the segments of the block.
        chosen: [K] the chosen segments.
        finals: the inputs after the ends of episodes, in the order of the ends.
        current: the inputs [N, ...] after the block, for segments that go on.
    """
    after = {name: trees.index(column, segments.env_index[chosen]) for name, column in current.items()}
    if finals:
        end = np.full(len(segments.start), -1)  # [S] the position of each segment among the ended segments, or -1
        end[segments.ended] = np.arange(len(segments.ended))
        over = np.flatnonzero(end[chosen] >= 0)
        trees.put(after, over, trees.index(trees.concat(finals), end[chosen[over]]))
    return after
