"""`RecordedChecks`: refuses recorded trajectories that a policy cannot have seen or acted in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.batch.finite import first_not_finite
from rollax.errors import NonFiniteError, PolicyError, ShapeError, SpaceError
from rollax.policy.action_masks import KEY as MASK
from rollax.policy.action_masks import ActionMasks
from rollax.policy.policy import Policy
from rollax.spaces import at, bounds, choices, leaves, path_text, same_space, space_text

if TYPE_CHECKING:
    from rollax.data import DatasetReader, RecordedTrajectory


class RecordedChecks:
    """The checks of one policy's trajectories; errors name the file and place."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._masks = ActionMasks(policy.observation_space, policy.action_space)
        self._discrete = [
            (path, leaf) for path, leaf in leaves(policy.action_space) if not isinstance(leaf, spaces.Box)
        ]
        self._known: set[str] = set()

    def spaces(self, trajectory: RecordedTrajectory, reader: DatasetReader) -> None:
        """Refuses spaces of the data that are not those of the policy."""
        recorded, policy = trajectory.policy_id, self._policy
        if recorded in self._known:
            return
        for kind in ("observation_space", "action_space"):
            theirs, ours = getattr(reader, f"{kind}s").get(recorded), getattr(policy, kind)
            if theirs is not None and not same_space(theirs, ours):
                raise SpaceError(
                    f"The {kind} of recorded data is not that of the policy.",
                    where=f"policy {policy.name!r}, {trajectory.where or 'recorded data'}",
                    got=space_text(theirs) if space_text(theirs) != space_text(ours) else theirs,
                    expected=space_text(ours) if space_text(theirs) != space_text(ours) else ours,
                    fix="learn from data of the same environment, or leave env out to take the spaces of the data",
                )
        self._known.add(recorded)

    def shapes(self, trajectory: RecordedTrajectory) -> None:
        """Refuses observations and actions of other shapes than their spaces, and what is not one number a step."""
        steps = len(trajectory)
        self._shapes(SampleBatch.OBS, trajectory, self._policy.observation_space, steps + 1)
        self._shapes(SampleBatch.ACTIONS, trajectory, self._policy.action_space, steps)
        for name in (SampleBatch.REWARDS, SampleBatch.ACTION_LOGP):
            if name in trajectory.columns and np.shape(trajectory.columns[name]) != (steps,):
                raise _wrong_shape(f"{_where(trajectory)}, column {name!r}", trajectory.columns[name], (steps,))

    def values(self, obs: Any, actions: Any, rewards: NDArray, trajectories: Sequence[RecordedTrajectory]) -> None:
        """Refuses values that no policy has seen, chosen or earned, in trajectories with N steps in all.

        NaN and infinity, by the rule of `first_not_finite`; actions outside a discrete space, and those that the mask
        of their observation forbids.

        Args:
            obs: columns [N + trajectories, ...]; each trajectory ends with its last observation.
            actions: columns [N, ...].
            rewards: [N].
            trajectories: for errors.
        """
        lengths = np.array([len(trajectory) for trajectory in trajectories])
        starts = np.cumsum(lengths) - lengths
        starts_of_obs = starts + np.arange(len(starts))
        self._numbers(SampleBatch.OBS, obs, trajectories, starts_of_obs)
        self._numbers(SampleBatch.ACTIONS, actions, trajectories, starts)
        self._numbers(SampleBatch.REWARDS, rewards, trajectories, starts)
        for path, leaf in self._discrete:
            column, (low, high) = at(actions, path), bounds(leaf)
            wrong = ((column < low) | (column > high)).reshape(len(column), -1).any(axis=1)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise self._refused("outside the action space", row, column[row], leaf, trajectories, starts)
        if self._masks.present and self._discrete:
            mask = np.delete(np.asarray(obs[MASK]), (starts_of_obs + lengths), axis=0)
            self._allowed(mask, actions, trajectories, starts)

    def _shapes(self, name: str, trajectory: RecordedTrajectory, space: spaces.Space, rows: int) -> None:
        for path, leaf in leaves(space):
            try:
                column = at(trajectory.columns[name], path)
            except (KeyError, IndexError, TypeError):
                column = None
            expected = rows, *(leaf.shape or ())
            if column is None or np.shape(column) != expected:
                raise _wrong_shape(f"{_where(trajectory)}, column {name!r}{path_text(path)}", column, expected)

    def _numbers(self, name: str, column: Any, trajectories: Sequence[RecordedTrajectory], starts: NDArray) -> None:
        bad = first_not_finite(name, column)
        if bad is not None:
            raise NonFiniteError(
                "NaN or infinity in recorded data.",
                where=f"{_step(bad.row, trajectories, starts)}, column {name!r}",
                got=bad.number,
                expected="finite numbers",
                fix="leave the episode out: `rollax data check` lists what is wrong",
            )

    def _allowed(
        self, mask: NDArray, actions: Any, trajectories: Sequence[RecordedTrajectory], starts: NDArray
    ) -> None:
        """Refuses discrete actions that the mask [N, ...] of their observation forbids."""
        taken = [
            (at(actions, path) - np.asarray(bounds(leaf)[0])).reshape(len(mask), -1)
            for path, leaf in self._discrete
            if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
        ]
        sizes = choices(self._policy.action_space)
        if not taken or mask.shape[1] != sum(sizes):
            return  # the policy refuses the mask
        first = np.cumsum([0, *sizes])[:-1]
        allowed = np.take_along_axis(mask, np.concatenate(taken, axis=1).astype(np.int64) + first, axis=1)
        if not allowed.all():
            row = int(np.flatnonzero(~allowed.all(axis=1))[0])
            raise self._refused("that the action mask forbids", row, mask[row], "a valid action", trajectories, starts)

    def _refused(
        self, what: str, row: int, got: Any, expected: Any, trajectories: Sequence[RecordedTrajectory], starts: NDArray
    ) -> PolicyError:
        return PolicyError(
            f"A recorded action {what}.",
            where=f"policy {self._policy.name!r}, {_step(row, trajectories, starts)}",
            got=got,
            expected=expected,
            fix="leave the episode out: `rollax data check` lists what is wrong",
        )


def _wrong_shape(where: str, column: Any, expected: tuple[int, ...]) -> ShapeError:
    return ShapeError(
        "A recorded column of another shape than its space.",
        where=where,
        got="nothing" if column is None else np.shape(column),
        expected=expected,
        fix="check the data: `rollax data check`",
    )


def _where(trajectory: RecordedTrajectory) -> str:
    return trajectory.where or f"episode {trajectory.episode_id}, agent {trajectory.agent_id!r}"


def _step(row: int, trajectories: Sequence[RecordedTrajectory], starts: NDArray) -> str:
    number = int(np.searchsorted(starts, row, side="right")) - 1
    return f"{_where(trajectories[number])}, step {row - int(starts[number])}"
