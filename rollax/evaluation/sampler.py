"""The sampler: policies act in a `BaseEnv` until a fragment is full. It knows rows and slots, not kinds of env."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.env.base_env import BaseEnv
from rollax.env.idle_polls import MOST_IDLE_POLLS, stuck
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.evaluation.episode_table import EpisodeTable
from rollax.evaluation.metrics import EpisodeMetrics
from rollax.evaluation.policy_runner import PolicyRunner
from rollax.evaluation.slot_memory import SlotMemory
from rollax.evaluation.slot_table import SlotTable
from rollax.evaluation.trajectories import Inputs, Trajectories
from rollax.policy.policy import Segments

log = logging.getLogger("rollax.sampling")
Fragment = dict[str, tuple[SampleBatch, Segments]]


class _Turn(NamedTuple):
    """The rows of one policy that act next, with their filtered observations."""

    policy_id: str
    selection: np.ndarray | None  # None: all rows
    obs: trees.Tree
    given: np.ndarray | None = None  # [rows of the turn] true where the agent has acted already; None: nowhere


class Sampler:
    """Steps an environment with policies and collects their trajectories.

    Args:
        env: the environment.
        runners: policy id -> policy, with its filter and action map.
        episodes: keeps the books of running episodes.
        policy_of: `(agent_id, episode) -> policy id`, asked once per agent and episode; None where there is one policy.
        fragment_length: env steps of each sub-environment in a fragment.
        complete_episodes: a fragment holds whole episodes only.
        record: keep trajectories; False for evaluation, which only wants the metrics.
    """

    def __init__(
        self,
        env: BaseEnv,
        runners: Mapping[str, PolicyRunner],
        episodes: EpisodeTable,
        *,
        policy_of: Callable[..., str] | None = None,
        fragment_length: int = 200,
        complete_episodes: bool = False,
        record: bool = True,
    ) -> None:
        self.env = env
        self.runners = dict(runners)
        self.episodes = episodes
        self.explore = True
        self.timestep = 0
        self._ids = list(self.runners)
        self._target = fragment_length * env.num_envs
        self._complete_episodes = complete_episodes
        self.record = record
        self._trajectories = self._empty_trajectories()
        self._memories = {policy_id: SlotMemory(runner) for policy_id, runner in self.runners.items()}
        self._memories_are_read = any(memory.active for memory in self._memories.values())
        self._rows: Rows | None = None
        self._turns: list[_Turn] = []
        self._slots = SlotTable(self._ids, policy_of, episodes.next_id)  # unique across workers, as episode ids are
        self._final_memories: dict[str, tuple[np.ndarray, Inputs]] = {}
        self._steps = self._idle_polls = 0
        self._under_way = False  # a call has begun and not ended: if no call is, nobody knows how far that one came

    def sample(self) -> tuple[Fragment, int]:
        """Trajectories by policy, and the number of env steps behind them.

        After a call that raised, or was interrupted, fresh episodes begin.
        """
        self._enter()
        while not self._is_full():
            if self._rows is None:
                self._begin()
            else:
                self._act_and_observe()
        cut = self._cut()
        self._under_way = False
        return cut

    def step(self) -> None:
        """One round of acting and observing; after a call that raised, or was interrupted, in fresh episodes."""
        self._enter()
        if self._rows is None:
            self._begin()
        self._act_and_observe()
        self._under_way = False

    def restart(self) -> None:
        """Drops the running episodes; the next fragment begins with a reset of everything."""
        self._under_way = True
        self._rows, self._turns, self._steps, self._idle_polls = None, [], 0, 0
        self._trajectories, self._slots = self._empty_trajectories(), self._slots.anew()
        self.episodes.drop_running()
        self._under_way = False

    def _enter(self) -> None:
        if self._under_way:
            log.warning(
                "Sampling was interrupted. The running episodes are dropped, and %d steps that no batch holds yet; "
                "fresh ones begin.",
                self._steps,
            )
            self.restart()
        self._under_way = True

    def _empty_trajectories(self) -> dict[str, Trajectories]:
        return {i: Trajectories(runner.columns_of_trajectories) for i, runner in self.runners.items()}

    @property
    def next_trajectory(self) -> int:
        """The number of the next trajectory that begins."""
        return self._slots.next

    @next_trajectory.setter
    def next_trajectory(self, number: int) -> None:
        self._slots.next = number

    def take_metrics(self) -> list[EpisodeMetrics]:
        """The metrics of the episodes finished since the last call."""
        return self.episodes.take_metrics(self._ids)

    def _begin(self) -> None:
        everyone = np.arange(self.env.num_envs)
        rows = self.env.reset_rows(everyone, self.episodes.seeds())
        self._observe(self.env.poll_rows() if rows is None else rows)

    def _act_and_observe(self) -> None:
        self._act()
        self._observe(self.env.poll_rows())
        self._idle_polls = 0 if self._turns else self._idle_polls + 1
        if self._idle_polls >= MOST_IDLE_POLLS:
            reported = () if self._rows is None else self._rows.agents or ()
            raise stuck(getattr(self.env, "name", type(self.env).__name__), reported, ())

    def _is_full(self) -> bool:
        if self._complete_episodes:
            return self.episodes.finished_steps >= self._target
        return self._steps >= self._target

    def _act(self) -> None:
        rows = self._rows
        assert rows is not None
        for policy_id, selection, obs, given in self._turns:
            runner, memory = self.runners[policy_id], self._memories[policy_id]
            slots, env_index = rows.slots, rows.env_index
            if selection is not None:
                slots, env_index = slots[selection], env_index[selection]
            context = memory.context(slots)
            if runner.takes_infos:
                context["info_batch"] = _infos(rows, selection).tolist()
            if runner.takes_episodes:
                context["episodes"] = [self.episodes.episode(index) for index in env_index.tolist()]
            actions, states, fetches = runner.act(obs, self.explore, self.timestep, context)
            off_policy = None
            if given is None:
                self.env.send_rows(rows, selection, runner.action_map(actions))
            else:
                off_policy = given.nonzero()[0]
                actions, fetches = self._act_around(rows, selection, given, runner, actions, fetches)
            if self.record:
                columns = {SampleBatch.OBS: obs, SampleBatch.ACTIONS: actions, **fetches, **memory.columns(context)}
                if runner.stores_more:
                    self._add_columns(columns, runner.columns, rows, selection, env_index)
                ids = self.episodes.ids_to_learn(env_index)
                self._trajectories[policy_id].append(slots, self._slots.of(slots), ids, columns, off_policy)
            memory.remember(slots, actions, states)

    def _act_around(
        self,
        rows: Rows,
        selection: np.ndarray | None,
        given: np.ndarray,
        runner: PolicyRunner,
        actions: trees.Tree,
        fetches: dict,
    ) -> tuple[trees.Tree, dict]:
        """Sends the policy's actions to those that wait; returns what the others did in the place of theirs."""
        everyone = np.arange(len(rows)) if selection is None else selection
        waiting = (~given).nonzero()[0]
        if len(waiting):
            self.env.send_rows(rows, everyone[waiting], runner.action_map(trees.index(actions, waiting)))
        assert rows.given_actions is not None
        taken = [rows.given_actions[row] for row in everyone[given].tolist()]
        return runner.with_given_actions(actions, fetches, given.nonzero()[0], taken)

    def _add_columns(
        self,
        columns: dict,
        wanted: frozenset[str] | None,
        rows: Rows,
        selection: np.ndarray | None,
        env_index: np.ndarray,
    ) -> None:
        """The columns that cost something to fill, as far as the policy reads them."""
        if wanted is None or SampleBatch.T in wanted:
            columns[SampleBatch.T] = self.episodes.lengths[env_index]
        if wanted is None or SampleBatch.AGENT_ID in wanted:
            columns[SampleBatch.AGENT_ID] = _agent_ids(rows, selection)
        if wanted is not None and SampleBatch.INFOS in wanted:
            columns[SampleBatch.INFOS] = _infos(rows, selection)

    def _observe(self, rows: Rows) -> None:
        """Books the outcomes, resets what has ended, and gets the next turns ready."""
        if len(rows.dropped_envs):
            self._drop(rows.dropped_envs)
        over = rows.terminateds | rows.truncateds
        starting = np.count_nonzero(rows.starts) > 0
        outcomes = (~rows.starts).nonzero()[0] if starting else None
        if starting:
            self.episodes.make_room_for_envs(int(rows.env_index.max()) + 1)
        self._steps += self.episodes.add_rewards(rows, outcomes)
        policies = self._slots.policies_of(rows.slots)  # of trajectories that begin they are chosen below
        if np.count_nonzero(over):
            ended = (over & ~rows.starts).nonzero()[0]
            self.episodes.end_trajectories(rows, ended, policies)
        if self._memories_are_read:
            self._remember_outcomes(rows, outcomes, policies)
        if len(rows.ended_envs) or len(rows.dropped_envs):
            self.episodes.end(rows.ended_envs)
            started = self.env.reset_rows(rows.over_envs())
            if started is not None:
                renewed = rows.renewed(started) if policies is None else None
                if renewed is not None:
                    self._renew(rows, started, renewed, outcomes)
                    return
                outcomes = np.arange(len(rows)) if outcomes is None else outcomes
                rows, starting = Rows.concat(rows, started), True
        if starting:
            policies = self._start_trajectories(rows, policies)
        rows.stack(self.env.observation_space)
        self._rows, self._turns = rows, []
        if policies is None:
            self._take_in(self._ids[0], rows, None, outcomes)
            return
        is_outcome = np.ones(len(rows), bool) if outcomes is None else ~rows.starts
        for number, policy_id in enumerate(self._ids):
            mine = policies == number
            if np.count_nonzero(mine):
                self._take_in(policy_id, rows, mine.nonzero()[0], (mine & is_outcome).nonzero()[0])

    def _renew(self, rows: Rows, started: Rows, renewed: Rows, outcomes: np.ndarray | None) -> None:
        """The same for one policy where the next trajectories take the very places of those that have ended.

        It spares joining the two sets of rows and picking those that act out of them.
        """
        (policy_id,) = self._ids
        runner = self.runners[policy_id]
        obs = runner.filter(rows.obs, self.record)
        self._settle(policy_id, rows, outcomes, None, obs)
        self._start_trajectories(started, None)
        obs = trees.tree_map(np.copy, obs)
        trees.put(obs, started.slots, runner.filter(started.obs, self.record))
        self._rows, self._turns = renewed, [_Turn(policy_id, None, obs)]

    def _take_in(self, policy_id: str, rows: Rows, mine: np.ndarray | None, outcomes: np.ndarray | None) -> None:
        """One policy's rows: observations filtered once each, outcomes settled, the rows that act noted.

        Args:
            policy_id: whose rows.
            rows: all rows.
            mine: which of them; None for all.
            outcomes: which of those have an outcome; None for all.
        """
        runner, with_obs = self.runners[policy_id], mine
        if isinstance(rows.obs, list) and any(value is None for value in rows.obs):
            everyone = np.arange(len(rows)) if mine is None else mine
            with_obs = everyone[rows.has_obs(everyone)]
        if not len(rows if with_obs is None else with_obs):
            self._settle(policy_id, rows, outcomes, with_obs, None)
            return
        obs = runner.filter(rows.observations(with_obs, runner.policy.observation_space), self.record)
        self._settle(policy_id, rows, outcomes, with_obs, obs)
        acts, given = rows.acts, None
        if rows.given_actions:
            given = np.zeros(len(rows), bool)
            given[list(rows.given_actions)] = True
            acts = acts | given
        acts = acts if with_obs is None else acts[with_obs]
        acting, selection = np.count_nonzero(acts), with_obs
        if not acting:
            return
        if acting < len(acts):
            positions = acts.nonzero()[0]
            selection = positions if with_obs is None else with_obs[positions]
            obs = trees.index(obs, positions)
        if given is not None:
            given = given if selection is None else given[selection]
            given = given if np.count_nonzero(given) else None
        if given is not None and self.record:
            learned = given & (rows.training() if selection is None else rows.training()[selection])
            if np.count_nonzero(learned):
                runner.check_off_policy()
        self._turns.append(_Turn(policy_id, selection, obs, given))

    def _remember_outcomes(self, rows: Rows, outcomes: np.ndarray | None, policies: np.ndarray | None) -> None:
        """Rewards for the memories, and the last contents of those whose trajectory has ended.

        Before any trajectory begins: the slot of one that has ended may then be another's.
        """
        over, self._final_memories = rows.terminateds | rows.truncateds, {}
        settled = np.arange(len(rows)) if outcomes is None else outcomes
        for number, policy_id in enumerate(self._ids):
            memory = self._memories[policy_id]
            mine = settled if policies is None else settled[policies[settled] == number]
            if memory.active and len(mine):
                memory.reward(rows.slots[mine], rows.rewards[mine])
                ended = mine[over[mine]]
                self._final_memories[policy_id] = ended, memory.inputs(rows.slots[ended])

    def _drop(self, env_index: np.ndarray) -> None:
        """The running episodes of these sub-environments are lost."""
        episodes = self.episodes.drop(env_index)
        for trajectories in self._trajectories.values():
            trajectories.drop(episodes)

    def _settle(
        self, policy_id: str, rows: Rows, outcomes: np.ndarray | None, with_obs: np.ndarray | None, obs: trees.Tree
    ) -> None:
        if not self.record or not len(rows) or (outcomes is not None and not len(outcomes)):
            return
        slots, rewards, terminateds, truncateds = rows.slots, rows.rewards, rows.terminateds, rows.truncateds
        if outcomes is not None:
            slots, rewards = slots[outcomes], rewards[outcomes]
            terminateds, truncateds = terminateds[outcomes], truncateds[outcomes]
        over, complete = terminateds | truncateds, True
        if isinstance(rows.obs, list):
            complete = over | rows.has_obs(np.arange(len(rows)) if outcomes is None else outcomes)
        trajectories = self._trajectories[policy_id]
        trajectories.settle(slots, rewards, terminateds, truncateds, complete)
        if np.count_nonzero(over):
            ended = (rows.terminateds | rows.truncateds) & ~rows.starts
            positions = (ended if with_obs is None else ended[with_obs]).nonzero()[0]
            if len(positions):
                last = positions if with_obs is None else with_obs[positions]
                inputs = {SampleBatch.OBS: trees.index(obs, positions)}
                if policy_id in self._final_memories:
                    remembered, memories = self._final_memories[policy_id]
                    inputs |= trees.index(memories, np.searchsorted(remembered, last))
                trajectories.set_final_inputs(rows.slots[last], inputs)

    def _start_trajectories(self, rows: Rows, policies: np.ndarray | None) -> np.ndarray | None:
        """Numbers new trajectories and maps them to policies; returns each row's policy, None where there is one."""
        starting = rows.starts.nonzero()[0]
        slots = rows.slots[starting]
        room = self._slots.room
        self._slots.begin(slots)
        if self._slots.room > room:
            self.episodes.make_room(self._slots.room)
            for trajectories in self._trajectories.values():
                trajectories.make_room(self._slots.room)
        trains = None if rows.trains is None else rows.trains[starting]
        several = rows.agents is not None
        self.episodes.begin(rows.env_index[starting], slots, trains, several_agents=several)
        chosen = self._slots.choose_policies(rows, starting, self.episodes)
        if policies is None or chosen is None:
            self._memories[self._ids[0]].forget(slots)
            return None
        for number, policy_id in enumerate(self._ids):
            self._memories[policy_id].forget(slots[chosen == number])
        policies = np.append(policies, np.zeros(len(rows) - len(policies), np.int64))
        policies[starting] = chosen
        return policies

    def _cut(self) -> tuple[Fragment, int]:
        finished, finished_steps = self.episodes.take_finished()
        steps = finished_steps if self._complete_episodes else self._steps
        self._steps = 0
        fragment: Fragment = {}
        for policy_id, trajectories in self._trajectories.items():
            next_inputs_of = partial(self._waiting_inputs, policy_id)
            cut = trajectories.cut(next_inputs_of, finished if self._complete_episodes else None)
            if cut is not None:
                # Here, not as they arrive: several rewards of one row are clipped as their sum.
                cut[0][SampleBatch.REWARDS] = self.runners[policy_id].clipped(cut[0][SampleBatch.REWARDS])
                fragment[policy_id] = cut
        return fragment, steps

    def _waiting_inputs(self, policy_id: str, trajectories: np.ndarray) -> Inputs:
        """What these trajectories are about to act on."""
        assert self._rows is not None
        turn = next(turn for turn in self._turns if turn.policy_id == policy_id)
        slots = self._rows.slots if turn.selection is None else self._rows.slots[turn.selection]
        waiting = self._slots.of(slots)
        order = np.argsort(waiting)
        places = order[np.searchsorted(waiting, trajectories, sorter=order)]
        memory = self._memories[policy_id]
        return {SampleBatch.OBS: trees.index(turn.obs, places), **memory.inputs(slots[places])}


def _agent_ids(rows: Rows, selection: np.ndarray | None) -> np.ndarray:
    chosen = range(len(rows)) if selection is None else selection.tolist()
    ids = np.empty(len(chosen), object)
    ids[:] = DEFAULT_AGENT if rows.agents is None else [rows.agents[row] for row in chosen]
    return ids


def _infos(rows: Rows, selection: np.ndarray | None) -> np.ndarray:
    infos, chosen = rows.info_list(), range(len(rows)) if selection is None else selection.tolist()
    column = np.empty(len(chosen), object)
    column[:] = [infos[row] for row in chosen]
    return column
