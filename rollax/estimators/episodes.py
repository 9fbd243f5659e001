"""`LoggedEpisodes`: recorded trajectories of one policy id as flat rows, checked for what estimates require."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.errors import BatchError, nearest
from rollax.estimators.importance import starts_of

if TYPE_CHECKING:
    from rollax.data.reader import RecordedTrajectory


@dataclass(frozen=True, eq=False)
class LoggedEpisodes:
    """n recorded trajectories with N rows in all, one after another; one agent of one episode is one of them.

    Attributes:
        obs: columns [N, ...] of raw observations.
        last_obs: columns [n, ...], what followed the last action of each trajectory.
        actions: columns [N, ...] of recorded actions.
        rewards: [N] float64.
        lengths: [n] steps of each.
        terminated: [n] false where it was cut by a time limit.
        behaviour_logp: [N] log μ(a_t | s_t); None where the log does not contain it.
        where: the origin of the data, for errors.
    """

    obs: trees.Tree
    last_obs: trees.Tree
    actions: trees.Tree
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    behaviour_logp: np.ndarray | None
    where: str

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, trajectories: Iterable[RecordedTrajectory], policy_id: str, where: str) -> LoggedEpisodes:
        """The trajectories of one policy id.

        Raises:
            BatchError: there are none, some are cut (neither terminated nor truncated), or have no reward.
        """
        everyone = list(trajectories)
        found = [one for one in everyone if one.policy_id == policy_id]
        if not found:
            there = sorted({one.policy_id for one in everyone})
            raise BatchError(
                "The data set has no trajectory of this policy.",
                where=where,
                got=f"policies {there}, {len(everyone)} trajectories",
                expected=f"policy {policy_id!r}",
                fix=nearest(policy_id, there),
            )
        cut = [one for one in found if not (one.terminated or one.truncated)]
        if cut:
            raise BatchError(
                "Returns are asked of trajectories whose recording stopped before they ended.",
                where=f"{cut[0].where}: trajectory of agent {cut[0].agent_id!r} in episode {cut[0].episode_id!r}",
                got=f"{len(cut)} of {len(found)} trajectories, neither terminated nor truncated",
                expected="whole episodes",
                fix="record with batch_mode='complete_episodes' or `rollax record`; or leave the cut ones out with "
                "drop_cut=True (--drop-cut), which favours short episodes",
            )
        logged = [one.columns.get(SampleBatch.ACTION_LOGP) for one in found]
        known = None
        if all(logp is not None for logp in logged):
            known = np.concatenate([np.asarray(logp, np.float64) for logp in logged])
        return cls(
            obs=trees.concat([trees.index(one.columns[SampleBatch.OBS], slice(-1)) for one in found]),
            last_obs=trees.concat([trees.index(one.columns[SampleBatch.OBS], slice(-1, None)) for one in found]),
            actions=trees.concat([one.columns[SampleBatch.ACTIONS] for one in found]),
            rewards=np.concatenate([np.asarray(one.columns[SampleBatch.REWARDS], np.float64) for one in found]),
            lengths=np.array([len(one.columns[SampleBatch.REWARDS]) for one in found]),
            terminated=np.array([one.terminated for one in found]),
            behaviour_logp=known,
            where=where,
        )

    def following(self) -> trees.Tree:
        """Columns [N, ...] of the observation after each row."""
        next_rows = np.arange(len(self.rewards)) + 1
        ends = starts_of(self.lengths) + self.lengths - 1
        next_rows[ends] = len(self.rewards) + np.arange(len(self))
        return trees.index(trees.concat([self.obs, self.last_obs]), next_rows)

    def discounts(self, gamma: float) -> np.ndarray:
        """[N] γ, and 0 at the last row of a terminated trajectory."""
        discounts = np.full(len(self.rewards), gamma)
        discounts[(starts_of(self.lengths) + self.lengths - 1)[self.terminated]] = 0.0
        return discounts

    def require_logp(self) -> np.ndarray:
        """`behaviour_logp`; BatchError where the log has none."""
        if self.behaviour_logp is None:
            raise BatchError(
                "The data set does not contain the log-probabilities of its actions.",
                where=self.where,
                got="no column 'action_logp', or not in every file",
                expected="action_logp of every action, under the policy that chose it",
                fix="record with output= or `rollax record` from a policy with an action distribution; or use 'dm' or "
                "'fqe', which need none; or pass behaviour='fitted', which fits a model of the behaviour policy",
            )
        return self.behaviour_logp
