"""`RecordedChecks`: refuses recorded trajectories that are impossible for a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.core.spaces import path_text, same_space, space_text
from rollax.errors import DatasetError, NonFiniteError, PolicyError, RollaxError, ShapeError, SpaceError
from rollax.offline.value_rules import Problem, ValueRules
from rollax.policy.policy import Policy

if TYPE_CHECKING:
    from rollax.offline.dataset import DatasetReader, RecordedTrajectory

_LEAVE_OUT = "leave the episode out: `rollax data check` lists what is wrong"


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
                raise SpaceError(
                    f"The {kind} of the recorded data is not that of the policy.",
                    f"policy {policy.name!r}, {trajectory.where or 'recorded data'}",
                    space_text(theirs) if space_text(theirs) != space_text(ours) else theirs,
                ).expected(
                    space_text(ours) if space_text(theirs) != space_text(ours) else ours,
                    "learn from data of the same environment, or leave env out to take the spaces of the data",
                )
        self._known.add(recorded)

    def shapes(
        self, trajectory: RecordedTrajectory, *, actions_of: Literal["policy", "environment"] = "policy"
    ) -> None:
        """Refuses columns of other shapes than their spaces, and numbers that the dtypes of these cannot hold.

        It is called before the columns are cast to these dtypes.

        Args:
            actions_of: see `ValueRules.columns`.
        """
        problem = next(self._rules.columns(trajectory, actions_of=actions_of), None)
        if problem is not None:
            raise self._error(problem, _where(trajectory), problem.row)

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
        raise self._error(problem, _where(trajectories[number]), problem.row - int(starts[number]))

    def _error(self, problem: Problem, where: str, step: int | None) -> RollaxError:
        place = f"column {problem.column!r}{path_text(problem.path)}"
        if problem.kind == "shape":
            return ShapeError(
                "A recorded column does not have the shape of its space.", f"{where}, {place}", problem.got
            ).expected(problem.expected, "find all such rows with `rollax data check`, and correct or remove them")
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
        return error(
            what,
            where=f"policy {self._policy.name!r}, {where}, step {step}, {place}",
            got=problem.got,
            expected=problem.expected,
            fix=_LEAVE_OUT,
        )


def _where(trajectory: RecordedTrajectory) -> str:
    return trajectory.where or f"episode {trajectory.episode_id}, agent {trajectory.agent_id!r}"
