"""Recorded trajectories as fragments of the policies that learn from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import NonFiniteError, PolicyError, ShapeError, SpaceError
from rollax.evaluation.actions import ActionMap
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.policy.action_masks import KEY as MASK
from rollax.policy.action_masks import ActionMasks
from rollax.spaces import at, bounds, choices, leaves, path_text, same_space, space_text, walk, zeros

if TYPE_CHECKING:
    from rollax.data import DatasetReader, RecordedTrajectory

_ROWS_AT_ONCE = 8192
_BYTES_AT_ONCE = 32 << 20


class RecordedFragments:
    """Turns the trajectories of a reader into fragments, as sampling would have returned them.

    Observations are not filtered: the statistics of a filter are known once all data is read. Actions are mapped to
    those of the policy, as the environment got them; rewards are clipped as in sampling. A trajectory that is cut in
    the middle counts as truncated: what came last has a value. Recorded recurrent states are not read: they belong to
    the network that acted, and ours begins each trajectory in its initial state.

    Args:
        reader: the data.
        runners: policy id -> runner.
        learning: the ids of the policies that learn; the trajectories of others are skipped.
        policy_of: `(agent_id, episode) -> policy id`; None where there is one policy. Where it reads the episode, the
            recorded policy id counts.
        columns: policy id -> further columns that its batches have, beside `obs`, `actions` and `rewards`.
        first_trajectory: the number of the first trajectory.
    Raises:
        SpaceError: a space of the data is not that of the policy that learns from it.
    """

    def __init__(
        self,
        reader: DatasetReader,
        runners: Mapping[str, PolicyRunner],
        learning: Collection[str],
        policy_of: Callable[..., str] | None = None,
        columns: Mapping[str, Collection[str]] | None = None,
        first_trajectory: int = 0,
    ) -> None:
        self._reader = reader
        self._policy_of = policy_of
        self._only = next(iter(runners)) if policy_of is None else None
        self._known = runners.keys()
        self._rows = {
            policy_id: _Rows(reader, runners[policy_id], (columns or {}).get(policy_id, ())) for policy_id in learning
        }
        self.trajectories = first_trajectory
        """The number of the next trajectory."""
        self.policy_ids: dict[tuple[Hashable, str], str] = {}
        """(agent id, recorded policy id) -> the policy that learns from it, as met so far."""

    def __iter__(self) -> Iterator[tuple[str, Fragment]]:
        """Policy ids and fragments of whole trajectories, in the order of the data.

        Raises:
            SpaceError, ShapeError, NonFiniteError, PolicyError: data that the policy cannot have seen or done, with the
                file and place of its trajectory.
        """
        collected: dict[str, list[RecordedTrajectory]] = {policy_id: [] for policy_id in self._rows}
        sizes = dict.fromkeys(self._rows, 0)
        for trajectory in self._reader.trajectories():
            who = trajectory.agent_id, trajectory.policy_id
            policy_id = self.policy_ids.get(who)
            if policy_id is None:
                policy_id = self.policy_ids[who] = self.policy_id(*who)
            if policy_id not in self._rows or not len(trajectory):
                continue
            self._rows[policy_id].check(trajectory)
            collected[policy_id].append(trajectory)
            per_row = sum(leaf.nbytes for leaf in trees.leaves(trajectory.columns[SampleBatch.OBS])) // len(trajectory)
            sizes[policy_id] += len(trajectory) * max(_BYTES_AT_ONCE // _ROWS_AT_ONCE, per_row)
            if sizes[policy_id] >= _BYTES_AT_ONCE:
                yield policy_id, self._fragment(policy_id, collected[policy_id])
                collected[policy_id], sizes[policy_id] = [], 0
        for policy_id, left in collected.items():
            if left:
                yield policy_id, self._fragment(policy_id, left)

    def _fragment(self, policy_id: str, trajectories: Sequence[RecordedTrajectory]) -> Fragment:
        first, self.trajectories = self.trajectories, self.trajectories + len(trajectories)
        return self._rows[policy_id].fragment(trajectories, first)

    def policy_id(self, agent_id: Hashable, recorded: str) -> str:
        """The policy that learns from the trajectories of an agent, for which the policy `recorded` acted."""
        if self._policy_of is None:
            assert self._only is not None
            return self._only
        try:
            return self._policy_of(agent_id, None)
        except PolicyError as error:
            if error.__cause__ is None or recorded not in self._known:
                raise
            return recorded  # the mapping reads the episode, which is not recorded


class _Rows:
    """The rows of one policy."""

    def __init__(self, reader: DatasetReader, runner: PolicyRunner, columns: Collection[str]) -> None:
        self._reader = reader
        self._runner = runner
        policy = runner.policy
        self._policy = policy
        self._columns = frozenset(columns)
        self._masks = ActionMasks(policy.observation_space, policy.action_space)
        self._discrete = [
            (path, leaf) for path, leaf in leaves(policy.action_space) if not isinstance(leaf, spaces.Box)
        ]
        header = reader.header
        flags = {
            name: bool(header.get(name, False)) for name in ("clip_actions", "normalize_actions") if name in header
        }
        self._recorded_map = ActionMap(
            policy.action_space, **{"clip_actions": True, "normalize_actions": True, **flags}
        )
        self._checked: set[str] = set()

    def check(self, trajectory: RecordedTrajectory) -> None:
        """Refuses other spaces, and columns that do not fit them."""
        recorded, policy = trajectory.policy_id, self._policy
        if recorded not in self._checked:
            for kind in ("observation_space", "action_space"):
                theirs, ours = getattr(self._reader, f"{kind}s").get(recorded), getattr(policy, kind)
                if theirs is not None and not same_space(theirs, ours):
                    raise SpaceError(
                        f"The {kind} of recorded data is not that of the policy.",
                        where=f"policy {policy.name!r}, {trajectory.where or 'recorded data'}",
                        got=space_text(theirs) if space_text(theirs) != space_text(ours) else theirs,
                        expected=space_text(ours) if space_text(theirs) != space_text(ours) else ours,
                        fix="learn from data of the same environment, or leave env out to take the spaces of the data",
                    )
            self._checked.add(recorded)
        self._check_shapes(SampleBatch.OBS, trajectory, policy.observation_space, len(trajectory) + 1)
        self._check_shapes(SampleBatch.ACTIONS, trajectory, policy.action_space, len(trajectory))

    def _check_shapes(self, name: str, trajectory: RecordedTrajectory, space: spaces.Space, rows: int) -> None:
        for path, leaf in leaves(space):
            try:
                got = np.shape(at(trajectory.columns[name], path))
            except (KeyError, IndexError, TypeError):
                got = "nothing"
            if got != (rows, *(leaf.shape or ())):
                raise ShapeError(
                    "A recorded column of another shape than its space.",
                    where=f"{_where(trajectory)}, column {name!r}{path_text(path)}",
                    got=got,
                    expected=(rows, *(leaf.shape or ())),
                    fix="check the data: `rollax data check`",
                )

    def fragment(self, trajectories: Sequence[RecordedTrajectory], first: int) -> Fragment:
        """These trajectories, each a segment; their numbers begin at `first`."""
        lengths = np.array([len(trajectory) for trajectory in trajectories])
        ends = np.cumsum(lengths) - 1
        policy, starts = self._policy, ends + 1 - lengths
        obs = trees.concat([_in_dtypes(policy.observation_space, t.columns[SampleBatch.OBS]) for t in trajectories])
        behind = ends + 1 + np.arange(len(ends))
        acted = np.ones(int(lengths.sum()) + len(ends), np.bool_)
        acted[behind] = False
        given = [np.asarray(trajectory.columns[SampleBatch.REWARDS], np.float32) for trajectory in trajectories]
        rewards = np.asarray(self._runner.clipped(np.concatenate(given)), np.float32)
        columns: dict[str, Any] = {
            SampleBatch.OBS: trees.index(obs, acted),
            SampleBatch.ACTIONS: trees.concat([self._actions(trajectory) for trajectory in trajectories]),
            SampleBatch.REWARDS: rewards,
            SampleBatch.TERMINATEDS: np.zeros(len(rewards), np.bool_),
            SampleBatch.TRUNCATEDS: np.zeros(len(rewards), np.bool_),
            SampleBatch.EPS_ID: np.repeat(first + np.arange(len(ends)), lengths),
            SampleBatch.TRAJECTORY_ID: np.repeat(first + np.arange(len(ends)), lengths),
        }
        terminated = np.array([trajectory.terminated for trajectory in trajectories], np.bool_)
        columns[SampleBatch.TERMINATEDS][ends] = terminated
        columns[SampleBatch.TRUNCATEDS][ends] = ~terminated
        after = {SampleBatch.OBS: trees.index(obs, behind)}
        self._add_further(columns, after, trajectories, lengths)
        fragment = Fragment(columns, ends, after)
        self._check_numbers(fragment, trajectories, starts)
        self._check_actions(fragment, trajectories, starts)
        if not self._columns <= set(fragment):
            policy.postprocess_rows(fragment)
        return fragment

    def _actions(self, trajectory: RecordedTrajectory) -> trees.Tree:
        """The actions of the policy that have the effect of the recorded ones."""
        actions = trajectory.columns[SampleBatch.ACTIONS]
        space, action_map = self._policy.action_space, self._runner.action_map
        if action_map.identity:
            return _in_dtypes(space, actions)
        if self._reader.actions_of == "policy":
            actions = trajectory.columns.get("env_actions", None)
            if actions is None:
                actions = self._recorded_map(trajectory.columns[SampleBatch.ACTIONS])
        return action_map.to_policy(_in_dtypes(space, actions))

    def _add_further(
        self,
        columns: dict[str, Any],
        after: dict[str, Any],
        trajectories: Sequence[RecordedTrajectory],
        lengths: NDArray,
    ) -> None:
        """Adds the further columns of the policy's batches that are recorded, or follow from what is."""
        wanted, policy = self._columns, self._policy
        starts = np.cumsum(lengths) - lengths
        for name, previous, nothing in (
            (SampleBatch.PREV_ACTIONS, SampleBatch.ACTIONS, zeros(policy.action_space, 1)),
            (SampleBatch.PREV_REWARDS, SampleBatch.REWARDS, np.zeros(1, np.float32)),
        ):
            if name in wanted:
                column = columns[previous]
                after[name] = trees.index(column, starts + lengths - 1)
                columns[name] = trees.index(column, np.maximum(np.arange(int(lengths.sum())) - 1, 0))
                trees.put(columns[name], starts, trees.index(nothing, np.zeros(len(starts), np.int64)))
        if SampleBatch.STATE_IN in wanted:
            for target, rows in ((columns, int(lengths.sum())), (after, len(lengths))):
                parts = (np.asarray(part) for part in policy.get_initial_state())
                target[SampleBatch.STATE_IN] = tuple(np.repeat(part[None], rows, axis=0) for part in parts)
        for name in wanted - columns.keys():
            if all(name in trajectory.columns for trajectory in trajectories):
                columns[name] = trees.concat([trajectory.columns[name] for trajectory in trajectories])

    def _check_numbers(self, fragment: Fragment, trajectories: Sequence[RecordedTrajectory], starts: NDArray) -> None:
        """Refuses NaN, and infinity in all but observations, whose space may allow it."""
        for name in (SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS):
            for leaf in trees.leaves(fragment[name]):
                if leaf.dtype.kind != "f":
                    continue
                bad = np.isnan(leaf) if name == SampleBatch.OBS else ~np.isfinite(leaf)
                if bad.any():
                    row = int(np.argwhere(bad)[0][0])
                    raise NonFiniteError(
                        "NaN or infinity in recorded data.",
                        where=f"{_step(row, trajectories, starts)}, column {name!r}",
                        got=leaf[bad][0],
                        expected="finite numbers",
                        fix="leave the episode out: `rollax data check` lists what is wrong",
                    )

    def _check_actions(self, fragment: Fragment, trajectories: Sequence[RecordedTrajectory], starts: NDArray) -> None:
        """Refuses actions outside a discrete space, and those that the mask of their observation forbids."""
        actions = fragment[SampleBatch.ACTIONS]
        for path, leaf in self._discrete:
            column, (low, high) = at(actions, path), bounds(leaf)
            wrong = ((column < low) | (column > high)).reshape(len(column), -1).any(axis=1)
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise self._refused("outside the action space", row, column[row], leaf, trajectories, starts)
        if not (self._masks.present and self._discrete):
            return
        mask = np.asarray(fragment[SampleBatch.OBS][MASK])
        taken = [
            (at(actions, path) - np.asarray(bounds(leaf)[0])).reshape(len(mask), -1)
            for path, leaf in self._discrete
            if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
        ]
        first = np.cumsum([0, *choices(self._policy.action_space)])[:-1]
        if not taken or mask.shape[1] != sum(choices(self._policy.action_space)):
            return  # the policy refuses the mask
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


def _in_dtypes(space: spaces.Space, columns: trees.Tree) -> trees.Tree:
    return walk(lambda leaf, path, column: np.asarray(column).astype(leaf.dtype, copy=False), space, columns)


def _where(trajectory: RecordedTrajectory) -> str:
    return trajectory.where or f"episode {trajectory.episode_id}, agent {trajectory.agent_id!r}"


def _step(row: int, trajectories: Sequence[RecordedTrajectory], starts: NDArray) -> str:
    number = int(np.searchsorted(starts, row, side="right")) - 1
    return f"{_where(trajectories[number])}, step {row - int(starts[number])}"
