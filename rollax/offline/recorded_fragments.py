"""Recorded trajectories as fragments of the policies that learn from them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.spaces import in_dtypes, zeros
from rollax.errors import DatasetError, PolicyError
from rollax.offline.dataset import ENV_ACTIONS, SCALE
from rollax.offline.value_rules import RecordedChecks
from rollax.rollout.actions import ActionMap
from rollax.rollout.policy_mapping import PolicyMapping
from rollax.rollout.policy_runner import PolicyRunner

if TYPE_CHECKING:
    from rollax.offline.dataset import DatasetReader, RecordedTrajectory

_ROWS_AT_ONCE = 8192
_BYTES_AT_ONCE = 32 << 20


def policy_of_recorded(policy_of: PolicyMapping, agent_id: Hashable, recorded: str) -> str:
    """The policy that learns from recorded trajectories of an agent; `recorded` is the policy that acted.

    If the mapping is random, or reads the episode, which is not recorded, then the policy that acted learns, provided
    that this run has a policy of that id. If not, the first result of a random mapping counts, and a mapping that reads
    the episode raises PolicyError.
    """
    known = recorded in policy_of.policy_ids
    try:
        returned = policy_of.returned(agent_id)
    except PolicyError as error:
        if error.__cause__ is None or not known:
            raise
        return recorded
    return recorded if known and len(set(returned)) > 1 else returned[0]


class RecordedFragments:
    """Converts the trajectories of a reader to the fragments that sampling would have returned.

    Observations are not filtered, because a filter's statistics are known only after all data is read. The actions that
    the environment received are mapped to the policy's scale; rewards are clipped as in sampling. A trajectory whose
    end is missing counts as truncated, so its last observation is bootstrapped. Recorded recurrent states are not read,
    because they belong to the network that acted: each trajectory begins with the initial state.

    Args:
        learning: the ids of the policies that learn; the trajectories of other policies are skipped.
        policy_of: the policy mapping; None for a single policy.
        columns: policy id -> further columns of its batches, in addition to `obs`, `actions` and `rewards`.
        first_trajectory: the id of the first trajectory.
    """

    def __init__(
        self,
        reader: DatasetReader,
        runners: Mapping[str, PolicyRunner],
        learning: Collection[str],
        policy_of: PolicyMapping | None = None,
        columns: Mapping[str, Collection[str]] | None = None,
        first_trajectory: int = 0,
    ) -> None:
        self._reader = reader
        self._policy_of = policy_of
        self._only = next(iter(runners)) if policy_of is None else None
        self._rows = {
            policy_id: _Rows(reader, runners[policy_id], (columns or {}).get(policy_id, ())) for policy_id in learning
        }
        self.trajectories = first_trajectory
        """The id of the next trajectory."""
        self.policy_ids: dict[tuple[Hashable, str], str] = {}
        """(agent id, recorded policy id) -> policy that learns from it, for all pairs so far."""

    def __iter__(self) -> Iterator[tuple[str, Fragment]]:
        """Policy ids and fragments of whole trajectories; a policy's fragments are in the order of the data.

        Raises:
            SpaceError, ShapeError, NonFiniteError, PolicyError, DatasetError: data that is impossible for the policy,
                with the file and place of its trajectory.
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
            self._rows[policy_id].checks.spaces(trajectory, self._reader)
            self._rows[policy_id].checks.shapes(trajectory, actions_of=self._reader.actions_of)
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
        """The policy that learns from the trajectories of an agent; `recorded` is the policy that acted."""
        if self._policy_of is None:
            assert self._only is not None
            return self._only
        return policy_of_recorded(self._policy_of, agent_id, recorded)


class _Rows:
    """Makes the fragments of one policy."""

    def __init__(self, reader: DatasetReader, runner: PolicyRunner, columns: Collection[str]) -> None:
        self._reader = reader
        self._runner = runner
        policy = runner.policy
        self._policy = policy
        self._columns = frozenset(columns)
        self.checks = RecordedChecks(policy)
        scale = {name: bool(reader.header.get(name, True)) for name in SCALE}
        self._recorded_map = ActionMap(policy.action_space, **scale)

    def fragment(self, trajectories: Sequence[RecordedTrajectory], first: int) -> Fragment:
        """A fragment with one segment per trajectory; their ids begin at `first`."""
        lengths = np.array([len(trajectory) for trajectory in trajectories])
        ends = np.cumsum(lengths) - 1
        policy = self._policy
        obs = trees.concat([in_dtypes(policy.observation_space, t.columns[SampleBatch.OBS]) for t in trajectories])
        behind = ends + 1 + np.arange(len(ends))
        acted = np.ones(int(lengths.sum()) + len(ends), np.bool_)
        acted[behind] = False
        given = [np.asarray(trajectory.columns[SampleBatch.REWARDS], np.float32) for trajectory in trajectories]
        rewards = np.asarray(self._runner.reward_map(np.concatenate(given)), np.float32)
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
        self.checks.values(obs, columns[SampleBatch.ACTIONS], rewards, trajectories)
        return self._postprocessed(fragment)

    def _postprocessed(self, fragment: Fragment) -> Fragment:
        """The rows as postprocessing changes them, as in sampling; PolicyError if it returns no fragment."""
        result = self._policy.postprocess_rows(fragment)
        if isinstance(result, Fragment):
            return result
        expected, fix = "the Fragment with further columns", "end it with: return super().postprocess_rows(fragment)"
        got, where = type(result).__name__, self._policy.label
        raise PolicyError.not_returned("postprocess_rows", "a fragment", where, got).expected(expected, fix)

    def _actions(self, trajectory: RecordedTrajectory) -> trees.Tree:
        """The policy's actions that are equivalent to the recorded actions."""
        actions = trajectory.columns[SampleBatch.ACTIONS]
        space, action_map = self._policy.action_space, self._runner.action_map
        if action_map.identity:
            return in_dtypes(space, actions)
        if self._reader.actions_of == "policy":
            actions = trajectory.columns.get(ENV_ACTIONS)
            if actions is None:
                self._check_scale(trajectory)
                actions = self._recorded_map(trajectory.columns[SampleBatch.ACTIONS])
        return action_map.to_policy(in_dtypes(space, actions))

    def _check_scale(self, trajectory: RecordedTrajectory) -> None:
        """Raises DatasetError if the files differ in how actions were scaled and clipped for the environment."""
        differs = [name for name in SCALE if self._reader.header.get(name, True) is None]
        if self._recorded_map.boxes and differs:
            got = "actions of the policy, in several scales, without the actions that the environment received"
            raise DatasetError(f"The files differ in {' and '.join(differs)}.", trajectory.where, got).expected(
                "files of one scale, or with a column env_actions",
                "make the files of each scale a source of their own: input={path: 1, other_path: 1}",
            )

    def _add_further(
        self,
        columns: dict[str, Any],
        after: dict[str, Any],
        trajectories: Sequence[RecordedTrajectory],
        lengths: NDArray,
    ) -> None:
        """Adds the further columns of the policy's batches that are recorded or can be derived."""
        wanted, policy = self._columns, self._policy
        starts = np.cumsum(lengths) - lengths
        received = self._runner.action_map.received
        for name, previous, nothing in (
            (SampleBatch.PREV_ACTIONS, SampleBatch.ACTIONS, zeros(policy.action_space, 1)),
            (SampleBatch.PREV_REWARDS, SampleBatch.REWARDS, np.zeros(1, np.float32)),
        ):
            if name in wanted:
                column = received(columns[previous]) if name == SampleBatch.PREV_ACTIONS else columns[previous]
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
