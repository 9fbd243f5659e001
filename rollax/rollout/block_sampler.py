"""`BlockSampler`: samples blocks [T, N] of N sub-environments that step together, with one agent in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.introspection import overrides
from rollax.env.rows import DEFAULT_AGENT, NO_ENVS, Rows
from rollax.rollout.blocks import BlockColumns, Segments, following
from rollax.rollout.callbacks import Callbacks
from rollax.rollout.policy_memory import SlotMemory
from rollax.rollout.postprocess import overrides_trajectory
from rollax.rollout.sampler import Sampler, warn_of_interruption
from rollax.rollout.table import Table

if TYPE_CHECKING:
    from rollax.env.base_env import BaseEnv
    from rollax.rollout.policy_runner import PolicyRunner
    from rollax.rollout.worker import RolloutWorker

_PACKED = "packed"
_HOOKS = "on_episode_start", "on_episode_step", "on_episode_end"
_POLICIES = np.zeros(1, np.int64)  # the number of the only policy


class BlockSampler(Sampler):
    """Samples an environment that is `in_lockstep`. The rows are the same as with `RowSampler`.

    Each poll writes a few arrays. Episodes, metrics and trajectories are computed once for a block, which is one
    fragment. In evaluations, which read metrics only, episodes are recorded after each step. If the policy has a
    `PackedActing`, as most policies without memory have, it chooses the actions; otherwise `PolicyRunner.act` does.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        ((self._policy_id, self._runner),) = self.runners.items()
        self._everyone = np.arange(self.env.num_envs)
        self._target = self.fragment_length * self.env.num_envs
        self._in_call = False  # true during a call, and after an interrupted one
        self._clear()

    def _clear(self) -> None:
        envs = len(self._everyone)
        self._memory = SlotMemory(self._runner, Table(envs))
        self._block = BlockColumns(envs, self.fragment_length)
        self._packed = self._runner.policy.packed_acting()
        self._running: Rows | None = None  # one row per sub-environment, as `send_rows` requires
        self._obs: trees.Tree = None  # [N, ...] filtered observations
        self._acting: np.ndarray | None = NO_ENVS  # the sub-environments that act next; None: all
        self._numbers = np.full((envs, 1), -1)  # the ids of the running trajectories
        self._returns = np.zeros((envs, 1))  # the sums of their rewards so far
        self._steps = 0  # environment steps in the block

    def sample(self) -> tuple[dict[str, Fragment], int]:
        self._enter()
        polls, finals = 0, []
        while self._steps < self._target:
            self._block.make_room(polls)
            self._act(polls)
            self._observe(polls, finals)
            polls += 1
        fragment, steps = self._cut(polls, finals), self._steps
        self._in_call = False
        return {self._policy_id: fragment}, steps

    def step(self) -> None:
        self._enter()
        chosen = self._acting
        self._act(0)
        rows = self._receive(0)
        if self._packed is not None and (chosen is None or len(chosen)):
            self._packed.columns_of(self._block.first(_PACKED, chosen))  # raises where outputs are not finite
        starting, ended, episodes = rows.starts.nonzero()[0], rows.ended_envs, self.episodes
        outcomes = (~rows.starts).nonzero()[0] if len(starting) else None
        received = slice(None) if outcomes is None else outcomes
        episodes.drop(rows.dropped_envs)
        episodes.add_rewards(rows, outcomes)
        self._returns[rows.env_index[received], 0] += rows.rewards[received]
        if len(ended):
            episodes.end_trajectories(ended, np.zeros(len(ended), np.int64), self._returns[ended, 0])
            episodes.end(ended)
        if len(starting):
            self._begin_in(rows.env_index[starting])
        if len(over := rows.over_envs()):
            started = self.reset_rows(over)
            if started is not None:
                self._begin_in(started.env_index)
                self._resume(started)
        self._in_call = False

    def restart(self) -> None:
        if self._in_call and self.record:
            warn_of_interruption(self._steps)
        self._in_call = True
        self._clear()
        self.episodes.drop_running()
        self._in_call = False

    def _enter(self) -> None:
        """Begins a call and its block; after an interrupted call, fresh episodes begin."""
        if self._in_call:
            self.restart()
        self._in_call, self._steps = True, 0
        self._block.begin()
        if self._running is None:
            no = np.zeros(len(self._everyone), bool)
            nothing = None, np.zeros(len(no)), no, no, no, ~no, NO_ENVS
            self._running = Rows(self._everyone, self._everyone, *nothing, in_order=True)
            rows = self.reset_rows(self._everyone, self.episodes.seeds())
            if rows is not None:  # otherwise the environment begins the episodes in the next poll
                self._begin_in(rows.env_index)
                self._resume(rows)

    def _begin_in(self, env_index: np.ndarray) -> None:
        """Begins an episode in each of these sub-environments."""
        self.episodes.begin(env_index, several_agents=False)
        first, self.next_trajectory = self.next_trajectory, self.next_trajectory + len(env_index)
        self._numbers[env_index, 0] = np.arange(first, self.next_trajectory)
        self._returns[env_index] = 0.0

    def _resume(self, rows: Rows) -> None:
        """Lets the sub-environments that have been reset act next, too; `rows` are the rows after the reset."""
        self._memory.begin(rows.env_index)
        self._replace(rows.env_index, self._filtered(rows.obs))
        if self._acting is not None:
            acting = np.concatenate((self._acting, rows.env_index))
            self._acting = None if len(acting) == len(self._everyone) else acting

    def _filtered(self, obs: trees.Tree) -> trees.Tree:
        return self._runner.filter(obs, self.record and self._runner.learns)

    def _act(self, poll: int) -> None:
        """Sends actions to the sub-environments that act next; writes the observations and the policy's outputs."""
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

    def _observe(self, poll: int, finals: list[trees.Tree]) -> None:
        """Writes the outcomes of a poll, resets ended episodes, and prepares the next actions."""
        rows = self._receive(poll)
        ended = rows.ended_envs
        if not (len(ended) or len(rows.dropped_envs)):
            return
        if len(ended):
            finals.append({SampleBatch.OBS: trees.index(self._obs, ended), **self._memory.inputs(ended)})
        started = self.reset_rows(rows.over_envs())
        if started is not None:  # otherwise the environment begins the episodes in the next poll
            self._block.begins[poll, started.env_index] = True
            self._resume(started)

    def _receive(self, poll: int) -> Rows:
        """Polls the environment, writes the outcomes and filters the observations; returns the rows of the poll."""
        rows = self.env.poll_rows()
        self._write_outcomes(poll, rows)
        self._see(rows)
        return rows

    def _write_outcomes(self, poll: int, rows: Rows) -> None:
        block, memory, index, starts = self._block, self._memory, rows.env_index, rows.starts
        place = poll if rows.in_order else (poll, index)
        if len(rows.dropped_envs):
            self._drop(poll, rows.dropped_envs)
        if len(rows) < len(self._everyone):
            block.rewards[poll], block.steps[poll] = 0.0, False
            block.steps[place] = True
        begun = int(np.count_nonzero(starts))
        if begun:
            block.steps[place], block.begins[place] = ~starts, starts
        self._steps += len(rows) - begun
        block.rewards[place] = rows.rewards
        if len(rows.ended_envs):
            block.terminateds[place], block.truncateds[place] = rows.terminateds, rows.truncateds
        if memory.active:
            if begun:
                memory.begin(index[starts])
            memory.reward(index[~starts], rows.rewards[~starts])

    def _see(self, rows: Rows) -> None:
        """Filters the observations of a poll, and sets which sub-environments act next."""
        self._acting = observing = None
        if np.count_nonzero(rows.acts) < len(self._everyone):
            self._acting, seen = rows.env_index[rows.acts], rows.observing()
            if np.count_nonzero(seen) < len(seen):  # an episode that ends with its reset is left out
                observing = seen.nonzero()[0]
        obs = self._filtered(rows.obs if observing is None else trees.index(rows.obs, observing))
        if observing is None and rows.in_order:
            self._obs = obs
        else:
            self._replace(rows.env_index if observing is None else rows.env_index[observing], obs)

    def _replace(self, env_index: np.ndarray, obs: trees.Tree) -> None:
        """Replaces the observations of some sub-environments, in a copy: the arrays may belong to the environment."""
        envs = len(self._everyone)
        self._obs = trees.zeros_like(obs, envs) if self._obs is None else trees.tree_map(np.copy, self._obs)
        trees.put(self._obs, env_index, obs)

    def _drop(self, poll: int, env_index: np.ndarray) -> None:
        """Drops the rows of the running episodes of these sub-environments."""
        steps, begins = self._block.steps, self._block.begins
        for env in env_index.tolist():
            first = int(begins[:poll, env].nonzero()[0].max(initial=-1)) + 1
            self._steps -= int(np.count_nonzero(steps[first:poll, env]))
            steps[first : poll + 1, env] = False

    def _cut(self, polls: int, finals: list[trees.Tree]) -> Fragment:
        """Records the episodes of the block; returns its rows, sorted by trajectory and by time inside each."""
        episodes, outcomes = self.episodes, self._block.outcomes(polls)
        segments = Segments.of(outcomes)
        since = segments.after(episodes["length"][: len(self._everyone)])
        numbers, self.next_trajectory = segments.numbered(self._numbers, self.next_trajectory)
        returns = segments.sums(outcomes.rewards, self._returns)
        ids = episodes.record_block(outcomes, segments, _POLICIES, returns)
        self._numbers, self._returns = numbers[segments.last], returns[segments.last]
        numbers = numbers[:, 0]
        order = np.argsort(numbers, kind="stable")
        order = order[segments.length[order] > 0]
        rows, step = segments.rows(order)

        def repeated(column: np.ndarray) -> np.ndarray:
            return np.repeat(column[order], segments.length[order])

        optional = {
            SampleBatch.T: lambda: repeated(since) + step,
            SampleBatch.SLOT: lambda: repeated(segments.env_index),
            SampleBatch.AGENT_ID: lambda: np.full(len(rows), DEFAULT_AGENT, object),
        }
        wanted, runner = self._runner.columns, self._runner
        columns: dict[str, Any] = self._block.rows_of(rows)
        if self._packed is not None:
            columns |= self._packed.columns_of(columns.pop(_PACKED))
        columns |= {name: make() for name, make in optional.items() if wanted is None or name in wanted}
        kept = {
            SampleBatch.TRAJECTORY_ID: repeated(numbers),
            SampleBatch.REWARDS: runner.reward_map(np.take(outcomes.rewards.ravel(), rows).astype(np.float32)),
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


def why_not_in_blocks(worker: RolloutWorker, env: BaseEnv) -> str:
    """Why a worker cannot sample by `BlockSampler`; empty if it can."""
    config, callbacks = worker.config, type(worker.callbacks)
    reasons = (
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
