"""`StepRecorder`: receives each step of a sampler, and writes the experience into files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rollax.core import trees
from rollax.env.rows import Rows
from rollax.rollout.policy_rows import GivenActions


class StepRecorder(Protocol):
    """Records the steps of a sampler, and writes whole episodes; an extension implements it.

    In each step the sampler calls `act` for each policy and polls; then it calls `drop` and `end` for episodes,
    `observe` for each policy, and `polled`. After a reset it calls `observe` with the first observations.
    """

    @property
    def paths(self) -> Sequence[Path]:
        """The files written so far."""
        ...

    def observe(
        self,
        policy_id: str,
        rows: Rows,
        selection: np.ndarray | None,
        obs: trees.Tree,
        complete: Any,
        outcomes: np.ndarray | None,
        ended: np.ndarray | None,
    ) -> None:
        """Records the outcomes and observations of one policy's rows of a poll.

        Args:
            selection: the rows with an observation that is acted on or is the last of its trajectory; None: all.
            obs: columns of their original observations.
            complete: [K], or one for all, whether the rows `outcomes` have such an observation.
            outcomes: [K] the rows of the policy with a reward and flags; None: all.
            ended: the rows of all policies whose trajectory has ended.
        """
        ...

    def act(
        self,
        policy_id: str,
        rows: Rows,
        selection: np.ndarray | None,
        actions: trees.Tree,
        columns: Mapping[str, Any],
        numbers: tuple[np.ndarray, np.ndarray, np.ndarray],
        given: GivenActions | None = None,
    ) -> None:
        """Records one policy's actions for some rows.

        Args:
            selection: the rows; None: all.
            actions: as the policy chose them.
            columns: further results of the policy.
            numbers: three arrays [K]: trajectory ids, episode ids (-1: not trained on), and the episodes' lengths so
                far.
            given: the actions that the environment has given. Unknown log-probabilities are written as NaN.
        """
        ...

    def forget(self, slots: np.ndarray) -> None:
        """Marks these slots as without a pending row, because their new trajectories have not acted yet."""
        ...

    def drop(self, episodes: np.ndarray) -> None:
        """Drops episodes that were lost."""
        ...

    def end(self, episodes: np.ndarray, lengths: np.ndarray, counted: np.ndarray) -> None:
        """Records the ends of episodes at this poll; drops episodes whose `counted` is false."""
        ...

    def polled(self) -> None:
        """Writes the finished episodes if there are enough; called after a poll was recorded."""
        ...

    def cut_running(self) -> None:
        """Writes all complete rows; fresh episodes begin."""
        ...

    def drop_running(self) -> None:
        """Writes the episodes that have ended, and drops all other rows; fresh episodes begin."""
        ...

    def close(self) -> None:
        """Writes all complete rows and completes the file."""
        ...
