"""`BlockSampler`: one agent in each of N sub-environments that step together; its rows are blocks [T, N]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.overrides import overrides
from rollax.env.rows import DEFAULT_AGENT, NO_ENVS, Rows
from rollax.rollout.blocks import BlockColumns, Segments, following
from rollax.rollout.callbacks import Callbacks
from rollax.rollout.policy_rows import picked
from rollax.rollout.postprocess import overrides_trajectory
from rollax.rollout.row_sampler import RowSampler
from rollax.rollout.slots import SlotMemory
from rollax.rollout.table import Table

if TYPE_CHECKING:
    from rollax.env.base_env import BaseEnv
    from rollax.rollout.policy_runner import PolicyRunner
    from rollax.rollout.worker import RolloutWorker

_PACKED = "packed"
_HOOKS = "on_episode_start", "on_episode_step", "on_episode_end"
_POLICIES = np.zeros(1, np.int64)  # the number of the only policy


class BlockSampler(RowSampler):
    """Samples an environment that is `in_lockstep`. The rows are the same as with `RowSampler`.

    Each poll writes a few arrays. Episodes, metrics and trajectories are computed once for a block, which is one
    fragment. Only metrics are read from single steps, which `RowSampler` samples.
    """

    def _clear(self) -> None:
        super()._clear()
        (self._runner,), envs = self.runners.values(), self.env.num_envs
        self._everyone = np.arange(envs)
        self._memory = SlotMemory(self._runner, Table(envs))
        self._block = BlockColumns(envs, self.fragment_length)
        self._packed = self._runner.policy.packed_acting()
        self._running: Rows | None = None  # a row of each sub-environment, for its actions
        self._obs: trees.Tree = None  # [N, ...] filtered observations
        self._acting: np.ndarray | None = NO_ENVS  # the sub-environments that act next; None: all
        self._numbers = np.full((envs, 1), -1)  # of the running trajectories
        self._returns = np.zeros((envs, 1))  # the sums of their rewards so far

    def sample(self) -> tuple[dict[str, Fragment], int]:
        self._enter()
        if self._rows is not None:  # of single steps
            self.restart()
            self._in_call = True
        if self._running is None:
            self._begin_all()
        polls, finals = 0, []
        self._block.begin()
        while self._steps < self._target:
            self._block.make_room(polls)
            self._act_in_block(polls)
            self._observe_in_block(polls, finals)
            polls += 1
        fragment = self._cut_block(polls, finals)
        steps, self._steps = self._steps, 0
        self._in_call = False
        return {self._ids[0]: fragment}, steps

    def step(self) -> None:
        if self._running is not None:
            self.restart()
        super().step()

    def _begin_all(self) -> None:
        everyone, envs = self._everyone, len(self._everyone)
        rows = self.reset_rows(everyone, self.episodes.seeds())
        if rows is not None:  # otherwise the environment begins the episodes in the next poll
            self._obs, self._acting = self._filtered(rows.obs), None
            self.episodes.begin(everyone, several_agents=False)
            first, self.next_trajectory = self.next_trajectory, self.next_trajectory + envs
            self._numbers = np.arange(first, first + envs)[:, None]
        no = np.zeros(envs, bool)
        self._running = Rows(everyone, everyone, None, np.zeros(envs), no, no, no, ~no, NO_ENVS, in_order=True)

    def _filtered(self, obs: trees.Tree) -> trees.Tree:
        return self._runner.filter(obs, self._runner.learns)

    def _act_in_block(self, poll: int) -> None:
        """Acts for the sub-environments that wait, and writes what the policy saw and chose."""
        chosen = self._acting
        if chosen is not None and not len(chosen):
            return
        assert self._running is not None
        runner, memory = self._runner, self._memory
        obs = self._obs if chosen is None else trees.index(self._obs, chosen)
        columns: dict[str, Any] = {}
        if self._packed is None:
            index = self._everyone if chosen is None else chosen
            context = memory.context(index) if memory.active else {}
            actions, states, fetches = runner.act(obs, self.explore, self.timestep, context)
            columns = {SampleBatch.ACTIONS: actions, **fetches}
            if memory.active:
                columns |= memory.columns(context)
                memory.remember(index, actions, states)
        else:
            actions, columns[_PACKED] = self._packed.actions(obs, self.explore)
            runner.check_actions(actions, trees.length(obs))
        self.env.send_rows(self._running, chosen, runner.action_map(actions))
        self._block.put(poll, self._obs, chosen, columns)

    def _observe_in_block(self, poll: int, finals: list[trees.Tree]) -> None:
        """Writes the outcomes of a poll, resets ended episodes, and prepares the next actions."""
        rows = self.env.poll_rows()
        self._write_outcomes(poll, rows)
        self._see(rows)
        ended = rows.ended_envs
        if not (len(ended) or len(rows.dropped_envs)):
            return
        if len(ended):
            finals.append({SampleBatch.OBS: trees.index(self._obs, ended), **self._memory.inputs(ended)})
        over = rows.over_envs()
        started = self.env.reset_rows(over)
        if started is not None:  # otherwise the environment begins the episodes in the next poll
            self._block.begins[poll, over] = True
            self._memory.begin(over)
            self._replace(started.env_index, self._filtered(started.obs))
            self._acting = None

    def _write_outcomes(self, poll: int, rows: Rows) -> None:
        block, memory, index, outcomes = self._block, self._memory, rows.env_index, None
        if len(rows.dropped_envs):
            self._drop_in_block(poll, rows.dropped_envs)
        if np.count_nonzero(rows.starts):
            starting, outcomes = index[rows.starts], (~rows.starts).nonzero()[0]
            block.steps[poll, starting], block.begins[poll, starting] = False, True
            memory.begin(starting)
        self._steps += len(rows if outcomes is None else outcomes)
        block.rewards[poll if rows.in_order else (poll, index)] = rows.rewards
        if len(rows.ended_envs):
            block.terminateds[poll, index], block.truncateds[poll, index] = rows.terminateds, rows.truncateds
        if memory.active:
            memory.reward(picked(index, outcomes), picked(rows.rewards, outcomes))

    def _see(self, rows: Rows) -> None:
        """Filters the observations of a poll; sets what acts next."""
        self._acting = observing = None
        if np.count_nonzero(rows.acts) < len(rows):
            self._acting, seen = rows.env_index[rows.acts], rows.observing()
            if np.count_nonzero(seen) < len(seen):  # an episode that is over with its reset has no row
                observing = seen.nonzero()[0]
        obs = self._filtered(rows.obs if observing is None else trees.index(rows.obs, observing))
        if observing is None and rows.in_order:
            self._obs = obs
        else:
            self._replace(picked(rows.env_index, observing), obs)

    def _replace(self, env_index: np.ndarray, obs: trees.Tree) -> None:
        """Replaces the observations of some sub-environments. The arrays may belong to the environment."""
        envs = len(self._everyone)
        self._obs = trees.zeros_like(obs, envs) if self._obs is None else trees.tree_map(np.copy, self._obs)
        trees.put(self._obs, env_index, obs)

    def _drop_in_block(self, poll: int, env_index: np.ndarray) -> None:
        """Drops the rows of the running episodes of these sub-environments."""
        steps, begins = self._block.steps, self._block.begins
        for env in env_index.tolist():
            first = int(begins[:poll, env].nonzero()[0].max(initial=-1)) + 1
            self._steps -= int(np.count_nonzero(steps[first:poll, env]))
            steps[first : poll + 1, env] = False

    def _cut_block(self, polls: int, finals: list[trees.Tree]) -> Fragment:
        """The rows of the block, sorted by trajectory, in time order inside each."""
        episodes, outcomes = self.episodes, self._block.outcomes(polls)
        segments, envs = Segments.of(outcomes), len(self._everyone)
        since = segments.after(episodes["length"][:envs])
        numbers, self.next_trajectory = segments.numbered(self._numbers, self.next_trajectory)
        returns = segments.sums(outcomes.rewards, self._returns)
        ids = episodes.record_block(outcomes, segments, _POLICIES, returns)
        episodes["cut"][:] = episodes["length"]
        self._numbers, self._returns = numbers[segments.last], returns[segments.last]
        order = np.argsort(numbers[:, 0], kind="stable")
        order = order[segments.length[order] > 0]
        rows, step = segments.rows(order)

        def repeated(column: np.ndarray) -> np.ndarray:
            return np.repeat(column[order], segments.length[order])

        optional = {
            SampleBatch.T: lambda: repeated(since) + step,
            SampleBatch.AGENT_ID: lambda: np.full(len(rows), DEFAULT_AGENT, object),
        }
        wanted, runner = self._runner.columns, self._runner
        columns: dict[str, Any] = self._block.rows_of(rows)
        if self._packed is not None:
            columns |= self._packed.columns_of(columns.pop(_PACKED))
        columns |= {name: make() for name, make in optional.items() if wanted is None or name in wanted}
        kept = {
            SampleBatch.TRAJECTORY_ID: repeated(numbers[:, 0]),
            SampleBatch.REWARDS: runner.clipped(np.take(outcomes.rewards.ravel(), rows).astype(np.float32)),
            SampleBatch.TERMINATEDS: np.take(outcomes.terminateds.ravel(), rows),
            SampleBatch.TRUNCATEDS: np.take(outcomes.truncateds.ravel(), rows),
            SampleBatch.OFF_POLICY: np.zeros(len(rows), bool),
        }
        dropped = {SampleBatch.TRAJECTORY_ID, SampleBatch.OFF_POLICY} - runner.columns_of_trajectories
        kept = {name: column for name, column in kept.items() if name not in dropped}
        current = {SampleBatch.OBS: self._obs, **self._memory.inputs(self._everyone)}
        after = following(segments, order, finals, current)
        ends = segments.length[order].cumsum() - 1
        return Fragment({**kept, **columns, SampleBatch.EPS_ID: repeated(ids)}, ends, after)


def only_by_rows(worker: RolloutWorker, env: BaseEnv, *, record: bool) -> str:
    """Why the fragments of a worker cannot be sampled by `BlockSampler`; empty if they can."""
    config, callbacks = worker.config, type(worker.callbacks)
    reasons = (
        (not record, "no rows to record"),
        (not env.in_lockstep, "sub-environments that do not step together"),
        (worker.policy_of is not None, "a policy_mapping_fn"),
        (config.batch_mode == "complete_episodes", "config key 'batch_mode', complete_episodes"),
        (config.recording_key is not None, f"config key {config.recording_key!r}"),
        (any(overrides(callbacks, Callbacks, hook) for hook in _HOOKS), "a callback on episodes"),
        (any(overrides_trajectory(policy) for policy in worker.policies.values()), "postprocess_trajectory of its own"),
        (any(_reads_infos(runner) for runner in worker.runners.values()), "a policy that reads infos or episodes"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _reads_infos(runner: PolicyRunner) -> bool:
    return runner.takes_infos or runner.takes_episodes or SampleBatch.INFOS in (runner.columns or ())
