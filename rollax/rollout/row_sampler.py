"""`RowSampler`: polls rows of all agents and sub-environments, and processes them as columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.batch.columns import positions_in
from rollax.core import trees
from rollax.env.agent_checks import MOST_IDLE_POLLS, stuck
from rollax.env.rows import NO_ENVS, Rows
from rollax.rollout.given_actions import check_off_policy, with_given_actions
from rollax.rollout.policy_memory import Inputs, SlotMemory
from rollax.rollout.policy_rows import GivenActions, PolicyRows, picked, turns_replaced
from rollax.rollout.sampler import Sampler, warn_of_interruption
from rollax.rollout.trajectories import SlotTable, Trajectories
from rollax.rollout.whole_episodes import LongEpisodes


class RowSampler(Sampler):
    """The sampler for every environment: one batched call per policy and poll, without loops over agents.

    `BlockSampler` and `CompiledSampler` are faster where they apply.

    The slot table has one row with the state of each agent, the episode table one row for each sub-environment. The
    tables are indexed by the slots and sub-environments of the polled rows, or by a slice if these are in order.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._ids = list(self.runners)
        self._target = self.fragment_length * self.env.num_envs
        self._in_call = False  # true during a call, and after an interrupted one
        self._long_episodes = LongEpisodes("batch_mode='complete_episodes' waits for the ends of episodes.")
        self._clear()

    def _clear(self) -> None:
        self._rows: Rows | None = None
        self._turns: list[PolicyRows] = []
        self._steps = self._idle_polls = 0
        self._slots = SlotTable(self._ids, self.policy_of)
        self._memories = {i: SlotMemory(runner, self._slots) for i, runner in self.runners.items()}
        self._trajectories = {
            i: Trajectories(runner.columns_of_trajectories, self._slots, f"pending row of {i}")
            for i, runner in self.runners.items()
        }
        self._memories_are_read = any(memory.active for memory in self._memories.values())
        self._final_memories: dict[str, tuple[np.ndarray, Inputs]] = {}

    def sample(self) -> tuple[dict[str, Fragment], int]:
        self._enter()
        while not self._is_full():
            if self._rows is None:
                self._begin()
            else:
                self._act_and_observe()
                if self.complete_episodes:
                    self._long_episodes.after_poll(lambda: self.episodes["length"])
        cut = self._cut()
        self._in_call = False
        return cut

    def step(self) -> None:
        self._enter()
        if self._rows is None:
            self._begin()
        self._act_and_observe()
        self._in_call = False

    def restart(self) -> None:
        if self._in_call and self.record:
            warn_of_interruption(self._steps)
        if self.recorder is not None:
            # After an interruption, the state may be inconsistent.
            self.recorder.drop_running() if self._in_call else self.recorder.cut_running()
        self._in_call = True
        self._clear()
        self.episodes.drop_running()
        self._in_call = False

    def _enter(self) -> None:
        if self._in_call:
            self.restart()
        self._in_call = True

    def _is_full(self) -> bool:
        return (self.episodes.finished_steps if self.complete_episodes else self._steps) >= self._target

    def _begin(self) -> None:
        rows = self.reset_rows(np.arange(self.env.num_envs), self.episodes.seeds())
        if rows is None:
            self._observe(self.env.poll_rows())
        else:
            self._rows, self._turns = rows, self._turns_of(rows, self._start(rows))

    def _act_and_observe(self) -> None:
        for turn in self._turns:
            self._act(turn)
        self._observe(self.env.poll_rows())
        self._idle_polls = 0 if self._turns else self._idle_polls + 1
        if self._idle_polls >= MOST_IDLE_POLLS:
            reported = () if self._rows is None else self._rows.agents or ()
            raise stuck(getattr(self.env, "name", type(self.env).__name__), reported, ())

    # Acting.

    def _act(self, turn: PolicyRows) -> None:
        """Computes a policy's actions for its acting rows, and records them."""
        assert self._rows is not None
        policy_id, selection, obs, given = turn
        rows, runner, memory = self._rows, self.runners[policy_id], self._memories[policy_id]
        context = memory.context(picked(rows.slots, selection)) if memory.active else {}
        if runner.takes_infos:
            context["info_batch"] = rows.infos_of(selection).tolist()
        if runner.takes_episodes:
            env_index = picked(rows.env_index, selection).tolist()
            context["episodes"] = [self.episodes.episode(index) for index in env_index]
        actions, states, fetches = runner.act(obs, self.explore, self.timestep, context)
        taken = off_policy = None
        if given is None:
            self.env.send_rows(rows, selection, runner.action_map(actions))
        else:
            actions, fetches, taken = self._act_around(turn, actions, fetches)
            off_policy = picked(rows.off_policy(), selection).nonzero()[0]
        if self.record or self.recorder is not None:
            envs, slots = rows.places(selection)
            numbers, ids = self._slots["trajectory"][slots], self.episodes.ids_to_learn(envs)
        if self.recorder is not None:
            where = numbers, ids, self.episodes["length"][envs]
            self.recorder.act(policy_id, rows, selection, actions, fetches, where, taken)
            fetches = runner.without_recorded(fetches)
        if self.record:
            columns = {SampleBatch.OBS: obs, SampleBatch.ACTIONS: actions, **fetches}
            if memory.active:
                columns |= memory.columns(context)
            if runner.stores_more:
                self._add_columns(columns, runner.columns, selection)
            self._trajectories[policy_id].append(slots, numbers, ids, columns, off_policy)
        if memory.active:
            memory.remember(picked(rows.slots, selection), actions, states)

    def _act_around(
        self, turn: PolicyRows, actions: trees.Tree, fetches: dict
    ) -> tuple[trees.Tree, dict, GivenActions]:
        """Sends the policy's actions for rows without given actions.

        Returns the actions of all rows, their fetches, and the given actions.
        """
        rows = self._rows
        assert rows is not None
        assert rows.given_actions is not None
        assert turn.given is not None
        runner, logps = self.runners[turn.policy_id], rows.given_logps or {}
        everyone = np.arange(len(rows)) if turn.selection is None else turn.selection
        waiting = (~turn.given).nonzero()[0]
        if len(waiting):
            self.env.send_rows(rows, everyone[waiting], runner.action_map(trees.index(actions, waiting)))
        values = [rows.given_actions[row] for row in everyone[turn.given].tolist()]
        known = {place: logps[row] for place, row in enumerate(everyone.tolist()) if row in logps} if logps else {}
        taken = GivenActions(turn.given.nonzero()[0], values, known)
        return *with_given_actions(runner, actions, fetches, *taken), taken

    def _add_columns(self, columns: dict, wanted: frozenset[str] | None, selection: np.ndarray | None) -> None:
        """Adds expensive columns, if the policy reads them."""
        assert self._rows is not None
        if wanted is None or SampleBatch.T in wanted:
            columns[SampleBatch.T] = self.episodes["length"][self._rows.places(selection)[0]]
        if wanted is None or SampleBatch.SLOT in wanted:
            columns[SampleBatch.SLOT] = picked(self._rows.slots, selection)
        if wanted is None or SampleBatch.AGENT_ID in wanted:
            columns[SampleBatch.AGENT_ID] = self._rows.agent_ids(selection)
        if wanted is not None and SampleBatch.INFOS in wanted:
            columns[SampleBatch.INFOS] = self._rows.infos_of(selection)

    # Observing.

    def _observe(self, rows: Rows) -> None:
        """Records the outcomes of a poll, resets ended episodes, and prepares the next actions."""
        if len(rows.dropped_envs):
            self._drop(rows.dropped_envs)
        outcomes = starting = ended = None
        over = rows.terminateds | rows.truncateds
        if np.count_nonzero(rows.starts):
            outcomes, starting = (~rows.starts).nonzero()[0], rows.starts.nonzero()[0]
            over &= ~rows.starts
            self._make_room(rows)
        if np.count_nonzero(over):
            ended = over.nonzero()[0]
        policies = self._policies_of(rows)
        self._steps += self.episodes.add_rewards(rows, outcomes)
        self._slots["reward"][rows.places(outcomes)[1]] += picked(rows.rewards, outcomes)
        if ended is not None:
            slots = rows.slots[ended]
            rewards, numbers = self._slots["reward"][slots], self._slots["policy"][slots]
            self.episodes.end_trajectories(rows.env_index[ended], numbers, rewards)
        if self._memories_are_read:
            self._remember_outcomes(rows, policies, outcomes, ended)
        resets = len(rows.ended_envs) > 0 or len(rows.dropped_envs) > 0
        if resets:
            if self.recorder is not None:
                ids, lengths = (self.episodes[name][rows.ended_envs] for name in ("id", "length"))
                self.recorder.end(ids, lengths, self.episodes.ending(rows.ended_envs))
            self.episodes.end(rows.ended_envs)
        if starting is not None:  # after the last trajectory of a reused slot has ended
            policies = self._begin_trajectories(rows, starting, policies)
        observed = self._take_in(rows, policies, outcomes, ended)
        if self.recorder is not None:
            self.recorder.polled()
        started = self.reset_rows(rows.over_envs()) if resets else None
        if started is None:
            self._rows, self._turns = rows, self._turns_of(rows, observed)
        else:
            self._join(rows, observed, started, self._start(started))

    def _drop(self, env_index: np.ndarray) -> None:
        """Drops the running episodes of these sub-environments."""
        self._steps -= self.episodes.steps_since_cut(env_index)
        episodes = self.episodes.drop(env_index)
        for trajectories in self._trajectories.values():
            trajectories.drop(episodes)
        if self.recorder is not None:
            self.recorder.drop(episodes)

    def _start(self, rows: Rows) -> list[PolicyRows]:
        """Processes the rows of a reset."""
        self._make_room(rows)
        policies = self._begin_trajectories(rows, np.arange(len(rows)), self._policies_of(rows))
        return self._take_in(rows, policies, NO_ENVS, None)

    def _join(self, rows: Rows, observed: list[PolicyRows], started: Rows, begun: list[PolicyRows]) -> None:
        """Joins the rows of agents whose trajectories continue with the rows of trajectories that begin."""
        replaced = rows.replaced(started)
        joined = None if replaced is None else turns_replaced(observed, started, begun)
        if replaced is not None and joined is not None:
            self._rows, self._turns = replaced, joined
            return
        turns = {turn.policy_id: turn for turn in self._turns_of(rows, observed)}
        for turn in self._turns_of(started, begun):
            nobody = PolicyRows(turn.policy_id, NO_ENVS, trees.index(turn.obs, slice(0)))
            first = turns.get(turn.policy_id, nobody)
            turns[turn.policy_id] = first.before(turn, len(rows), len(started))
        self._rows = Rows.concat(rows, started)
        self._turns = [turns[policy_id] for policy_id in self._ids if policy_id in turns]

    def _make_room(self, rows: Rows) -> None:
        """Makes room in the tables for rows that start."""
        self.episodes.make_room(int(rows.env_index.max(initial=-1)) + 1)
        self._slots.make_room(int(rows.slots.max(initial=-1)) + 1)

    def _policies_of(self, rows: Rows) -> np.ndarray | None:
        """The index of each row's policy; None if there is only one policy."""
        return None if len(self._ids) == 1 else self._slots["policy"][rows.slots]

    def _begin_trajectories(self, rows: Rows, starting: np.ndarray, policies: np.ndarray | None) -> np.ndarray | None:
        """Begins trajectories, and episodes where none runs; returns each row's policy, None for a single policy."""
        first, self.next_trajectory = self.next_trajectory, self.next_trajectory + len(starting)
        slots = rows.slots[starting]
        trains, several_agents = picked(rows.trains, starting), bool(rows.agents)
        self.episodes.begin(rows.env_index[starting], trains, rows.resumed_envs, several_agents=several_agents)
        self._slots.begin(rows, starting, first, self.episodes)
        if policies is not None:
            policies[starting] = self._slots["policy"][slots]
        for number, memory in enumerate(self._memories.values()):
            if memory.active:
                memory.begin(slots if policies is None else slots[policies[starting] == number])
        return policies

    def _take_in(
        self, rows: Rows, policies: np.ndarray | None, outcomes: np.ndarray | None, ended: np.ndarray | None
    ) -> list[PolicyRows]:
        """Filters the observations of a poll or reset, and records its outcomes; returns the rows by policy."""
        rows.stack(self.env.observation_space)
        observing: np.ndarray | None = rows.observing()
        if np.count_nonzero(observing) == len(rows):
            observing = None
        observed = []
        if policies is None:
            if len(rows):
                selection = None if observing is None else observing.nonzero()[0]
                observed.append(self._take_in_for(self._ids[0], rows, selection, observing, outcomes, ended))
        else:
            for number, policy_id in enumerate(self._ids):
                mine = (policies == number).nonzero()[0]
                if len(mine):
                    selection = mine if observing is None else mine[observing[mine]]
                    received = mine[~rows.starts[mine]]
                    observed.append(self._take_in_for(policy_id, rows, selection, observing, received, ended))
        if observing is not None:
            # These agents have not acted yet; their rewards must not be added to the slot's previous trajectory.
            waiting = rows.slots[(rows.starts & ~observing).nonzero()[0]]
            for trajectories in self._trajectories.values():
                trajectories.forget(waiting)
            if self.recorder is not None:
                self.recorder.forget(waiting)
        return observed

    def _take_in_for(
        self,
        policy_id: str,
        rows: Rows,
        selection: np.ndarray | None,
        observing: np.ndarray | None,
        outcomes: np.ndarray | None,
        ended: np.ndarray | None,
    ) -> PolicyRows:
        runner, obs, raw = self.runners[policy_id], None, None
        if selection is None or len(selection):
            raw = rows.observations(selection, runner.policy.observation_space)
            obs = runner.filter(raw, self.record and runner.learns)
        observed = PolicyRows(policy_id, selection, obs)
        complete = True if observing is None else picked(observing, outcomes)
        if self.record and (outcomes is None or len(outcomes)):
            inputs, memories = {SampleBatch.OBS: obs}, self._final_memories.get(policy_id)
            trajectories = self._trajectories[policy_id]
            trajectories.record_rows(rows, selection, inputs, complete, outcomes, ended, memories)
        if self.recorder is not None:
            self.recorder.observe(policy_id, rows, selection, raw, complete, outcomes, ended)
        return observed

    def _remember_outcomes(
        self, rows: Rows, policies: np.ndarray | None, outcomes: np.ndarray | None, ended: np.ndarray | None
    ) -> None:
        """Adds rewards to the memories, and keeps the final inputs from the memory of each ended trajectory."""
        self._final_memories = {}
        chosen = np.arange(len(rows)) if outcomes is None else outcomes
        for number, (policy_id, memory) in enumerate(self._memories.items()):
            mine = chosen if policies is None else chosen[policies[chosen] == number]
            if memory.active and len(mine):
                memory.reward(rows.slots[mine], rows.rewards[mine])
                if ended is not None:
                    last = np.intersect1d(mine, ended, assume_unique=True)
                    self._final_memories[policy_id] = last, memory.inputs(rows.slots[last])

    def _turns_of(self, rows: Rows, observed: list[PolicyRows]) -> list[PolicyRows]:
        """The rows that act next, with their observations, by policy."""
        turns = [turn for one in observed if (turn := one.acting(rows)) is not None]
        if self.record and rows.given_actions:
            chosen_elsewhere = rows.off_policy() & rows.training()
            for turn in turns:
                if turn.given is not None and np.count_nonzero(picked(chosen_elsewhere, turn.selection)):
                    check_off_policy(self.runners[turn.policy_id])
        return turns

    # Fragments.

    def _cut(self) -> tuple[dict[str, Fragment], int]:
        finished, finished_steps = self.episodes.take_finished()
        steps = finished_steps if self.complete_episodes else self._steps
        self._steps = 0
        self.episodes["cut"][:] = self.episodes["length"]
        fragments = {}
        for policy_id, trajectories in self._trajectories.items():
            next_inputs_of = partial(self._waiting_inputs, policy_id)
            fragment = trajectories.cut(next_inputs_of, finished if self.complete_episodes else None)
            if fragment is not None:
                # Clipped only now: a row may receive several rewards, and their sum is clipped.
                fragment[SampleBatch.REWARDS] = self.runners[policy_id].reward_map(fragment[SampleBatch.REWARDS])
                fragments[policy_id] = fragment
        return fragments, steps

    def _waiting_inputs(self, policy_id: str, trajectories: np.ndarray) -> Inputs:
        """The pending inputs of these trajectories."""
        assert self._rows is not None
        turn = next(turn for turn in self._turns if turn.policy_id == policy_id)
        slots = picked(self._rows.slots, turn.selection)
        places = positions_in(self._slots["trajectory"][slots], trajectories)
        return {SampleBatch.OBS: trees.index(turn.obs, places), **self._memories[policy_id].inputs(slots[places])}
