"""`CandidatePlayer`: plays the episodes of candidate parameters, one candidate in each sub-environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollax.core import trees
from rollax.env.base_env import BaseEnv
from rollax.env.rows import Rows
from rollax.errors import EnvError, NonFiniteError, PolicyError
from rollax.ops.evolution import SIGNS, action_stream, candidate, direction, episode_seed
from rollax.rollout.metrics import EpisodeList, EpisodeMetrics
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.sampler import Sampler
from rollax.rollout.whole_episodes import LongEpisodes
from rollax.search.messages import CandidateReturns, Candidates
from rollax.search.searched_policy import SearchedPolicy
from rollax.search.slot_moments import SlotMoments

_IDLE = -1
_NOISE_ROWS = 64
_SIDES = len(SIGNS)


class _Task(NamedTuple):
    """One episode of one candidate."""

    index: int  # index of the direction
    side: int  # in SIGNS
    episode: int


class _Progress:
    """The tasks of a request, which tasks have begun and ended, and the outcomes of ended tasks.

    Attributes:
        returns: [tasks] the returns of ended tasks.
        seen: task -> the statistics of its observations.
        ended: tasks, in the order in which their episodes ended.
    """

    def __init__(self, request: Candidates, theta: NDArray[np.float32]) -> None:
        self.request, self._theta = request, theta
        places = product(request.indices.tolist(), range(_SIDES), range(request.episodes))
        self.tasks = list(starmap(_Task, places))
        self.returns = np.zeros(len(self.tasks))
        self.seen: dict[int, dict] = {}
        self.ended: list[int] = []
        self._begun = 0
        self._direction: tuple[int, NDArray] = -1, theta  # of the last task, often also of the next task

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return len(self.ended) == len(self.tasks)

    def begin(self, most: int) -> NDArray[np.int64]:
        """The next tasks, at most `most`."""
        first, self._begun = self._begun, min(self._begun + most, len(self.tasks))
        return np.arange(first, self._begun)

    def vector(self, task: _Task) -> NDArray[np.float32]:
        """The parameters of a task's candidate."""
        request = self.request
        if self._direction[0] != task.index:
            self._direction = task.index, direction(request.seed, request.generation, task.index, len(self._theta))
        return candidate(self._theta, request.noise_stdev, SIGNS[task.side], self._direction[1])


class CandidatePlayer:
    """Plays candidates in the slots of a sampler's environment: one in each sub-environment.

    A slot plays one episode with the parameters of one candidate, then the next episode that has no slot yet; if none
    is left, the sub-environment is not stepped, or its steps are ignored. The return of a candidate depends neither on
    the number of slots nor on the other candidates: seeds depend only on the direction and the episode's number,
    `StackedActing` computes the actions, and statistics are kept by slot.

    Args:
        sampler: has the environment and the table of running episodes; restarted before episodes are played.
        runner: the runner of the only policy.
        worker_index: index of the worker.
    Raises:
        PolicyError: the policy is not a `SearchedPolicy`.
        EnvError: the environment has several agents, or does not begin episodes from given seeds.
    """

    compiled_with_env = False

    def __init__(self, sampler: Sampler, runner: PolicyRunner, worker_index: int) -> None:
        self._sampler, self._runner, self._worker_index = sampler, runner, worker_index
        self._env, self._episodes = sampler.env, sampler.episodes
        _check(self._env, runner)
        policy = runner.policy
        assert isinstance(policy, SearchedPolicy)
        self._policy = policy
        slots = self._env.num_envs
        self._acting = policy.stacked(slots, with_env=self.compiled_with_env)
        self._moments = SlotMoments(runner.filter, slots)
        self._task_of = np.full(slots, _IDLE)
        self._returns = np.zeros(slots)
        self._noise = _ActionNoise(slots)
        waits = f"A generation waits for all episodes of its candidates (worker {worker_index})."
        self._long_episodes = LongEpisodes(waits)

    def play(self, request: Candidates) -> CandidateReturns:
        """Plays the episodes of a request, with the policy's parameters as θ.

        Returns when all episodes have ended, so the environment must end each episode. A very long episode logs a
        warning once. The metrics of sampled episodes are kept.
        """
        started = time.perf_counter()
        self._sampler.restart()
        progress = self._progress = _Progress(request, self._policy.get_vector())
        with self._episodes.apart():
            self._begin()
            while not progress.is_over:
                self._long_episodes.after_poll(lambda: np.where(self._plays, self._episodes["length"], 0))
                self._advance()
            metrics: list[EpisodeMetrics] = self._sampler.take_metrics()
        shape = len(request.indices), _SIDES, request.episodes
        in_order = np.argsort(progress.ended)
        lengths = np.array([metrics[place].length for place in in_order]).reshape(shape)
        return CandidateReturns(
            worker_index=self._worker_index,
            indices=request.indices,
            returns=progress.returns.reshape(shape).mean(axis=2),
            lengths=lengths.sum(axis=(1, 2)),
            episodes=EpisodeList([metrics[place] for place in in_order]),
            filters=[progress.seen[task] for task in range(len(progress.tasks))] if progress.seen else [],
            sample_s=time.perf_counter() - started,
        )

    def _begin(self) -> None:
        self._task_of[:] = _IDLE
        self._waiting: list[Rows] = []  # rows that act before the next poll
        started = self._begin_episodes(np.arange(self._env.num_envs))
        self._waiting = [started] if started is not None else self._observe(self._env.poll_rows())

    @property
    def _plays(self) -> NDArray[np.bool_]:
        """[slots] whether a slot has a task."""
        return self._task_of != _IDLE

    def _advance(self) -> None:
        """Plays one step in each slot, and begins the next episodes."""
        for rows in self._waiting:
            self._act(rows)
        self._waiting = self._observe(self._env.poll_rows())

    def _begin_episodes(self, slots: NDArray) -> Rows | None:
        """Gives these slots the next tasks; returns their first rows, or None if the resets return no rows."""
        tasks = self._progress.begin(len(slots))
        begun, idle = slots[: len(tasks)], slots[len(tasks) :]
        self._task_of[begun], self._task_of[idle] = tasks, _IDLE
        rests = not len(idle) or self._env.rest_rows(idle)
        return self._reset(begun if rests else slots)

    def _reset(self, slots: NDArray) -> Rows | None:
        """Resets slots with the seeds of their tasks; slots without a task are reset without a seed."""
        if not len(slots):
            return None
        progress, request, seeds = self._progress, self._progress.request, []
        for slot, number in zip(slots.tolist(), self._task_of[slots].tolist(), strict=True):
            if number == _IDLE:
                seeds.append(None)
                continue
            task = progress.tasks[number]
            part = _SIDES * task.episode + task.side
            self._acting.set_vector(slot, progress.vector(task))
            self._moments.clear(slot)
            self._returns[slot] = 0.0
            if request.action_noise:
                self._noise.begin(slot, action_stream(request.seed, request.generation, task.index, part))
            start = task.episode if request.shared_starts else part
            seeds.append(episode_seed(request.seed, request.generation, task.index, start))
        rows = self._env.reset_rows(slots, seeds)
        if rows is not None:
            self._note_starts(rows, np.arange(len(rows)))
        return rows

    def _note_starts(self, rows: Rows, starting: NDArray) -> None:
        slots = rows.env_index[starting]
        self._episodes.begin(slots[self._plays[slots]], several_agents=False)

    def _act(self, rows: Rows) -> None:
        """Acts for the rows that wait for an action, each with the parameters of its slot."""
        selection = None if np.count_nonzero(rows.acts) == len(rows) else np.flatnonzero(rows.acts)
        slots = rows.env_index if selection is None else rows.env_index[selection]
        if not len(slots):
            return
        rows.stack(self._env.observation_space)
        obs = rows.observations(selection, self._policy.observation_space)
        self._policy.check_masks(obs)
        self._policy.wide_integers.check(obs, self._policy.name)
        plays = self._plays[slots]
        if np.count_nonzero(plays) == len(plays):
            self._moments.add(slots, obs)
        else:
            self._moments.add(slots[plays], trees.index(obs, np.flatnonzero(plays)))
        self._acting.set_obs(slots, self._runner.filter(obs, update=False))
        actions, finite = self._acting.actions(slots, self._policy.extra)
        if np.count_nonzero(finite) != len(finite):
            raise self._not_finite(int(slots[np.argmin(finite)]))
        if amount := self._progress.request.action_noise:
            actions = actions + np.float32(amount) * self._noise.next(slots, actions.shape[1:])
        self._env.send_rows(rows, selection, self._runner.action_map(actions))

    def _observe(self, rows: Rows) -> list[Rows]:
        """Records the outcomes of a poll, and begins the next episodes; returns the rows that may act."""
        if rows.agents is not None:
            raise _several_agents(self._env)
        slots, plays = rows.env_index, self._plays[rows.env_index]
        starts = np.flatnonzero(rows.starts)
        if len(starts):
            self._note_starts(rows, starts)
        if len(rows.dropped_envs):
            self._episodes.drop(rows.dropped_envs)
        outcomes = None
        if len(starts) or np.count_nonzero(plays) < len(plays):
            outcomes = np.flatnonzero(plays & ~rows.starts)
        if outcomes is None or len(outcomes):
            self._episodes.add_rewards(rows, outcomes)
            slots, rewards = (slots, rows.rewards) if outcomes is None else (slots[outcomes], rows.rewards[outcomes])
            self._returns[slots] += self._counted(rewards)
        if not (len(rows.ended_envs) or len(rows.dropped_envs)):
            return [rows]
        self._end(rows.ended_envs[self._plays[rows.ended_envs]])
        again = self._reset(rows.dropped_envs)  # the same episodes again
        started = None if self._progress.is_over else self._begin_episodes(rows.ended_envs)
        return [one for one in (rows, again, started) if one is not None]

    def _counted(self, rewards: NDArray) -> NDArray:
        request = self._progress.request
        rewards = (
            rewards + request.reward_offset
        )  # before the sign: a bonus for each step would make all signs positive
        return np.sign(rewards) if request.sign_rewards else self._runner.reward_map(rewards)

    def _end(self, slots: NDArray) -> None:
        progress, tasks = self._progress, self._task_of[slots]
        progress.returns[tasks] = self._returns[slots]
        for slot, task in zip(slots.tolist(), tasks.tolist(), strict=True):
            if seen := self._moments.of(slot):
                progress.seen[task] = seen
        progress.ended += tasks.tolist()
        rewards = self._episodes["reward"][slots]
        self._episodes.end_trajectories(slots, np.zeros(len(slots), np.int64), rewards)
        self._episodes.end(slots)

    def _not_finite(self, slot: int) -> NonFiniteError:
        task = self._task_of[slot]
        where = f"policy {self._policy.name!r}, sub-environment {slot}"
        if task != _IDLE:
            progress = self._progress
            where += f", direction {progress.tasks[task].index} of generation {progress.request.generation}"
        return NonFiniteError(
            "The model's outputs are not finite: no action can be chosen.", where, "NaN or infinity"
        ).expected(
            "finite outputs",
            "lower lr and noise_stdev, or standardize the observations (observation_filter='MeanStdFilter'); an "
            "infinite observation gives such outputs too",
        )


class _ActionNoise:
    """Normal random numbers for the actions of each slot, drawn several steps ahead."""

    def __init__(self, slots: int) -> None:
        self._streams: list[np.random.Generator | None] = [None] * slots
        self._used = np.zeros(slots, np.int64)
        self._drawn: NDArray | None = None

    def begin(self, slot: int, stream: np.random.Generator) -> None:
        self._streams[slot], self._used[slot] = stream, _NOISE_ROWS

    def next(self, slots: NDArray, shape: Sequence[int]) -> NDArray[np.float32]:
        """[N, *shape] The next numbers of these slots."""
        if self._drawn is None:
            self._drawn = np.zeros((len(self._streams), _NOISE_ROWS, *shape), np.float32)
        for slot in slots[self._used[slots] == _NOISE_ROWS].tolist():
            stream = self._streams[slot]
            if stream is not None:  # slots without a candidate have no stream
                self._drawn[slot] = stream.standard_normal((_NOISE_ROWS, *shape), np.float32)
            self._used[slot] = 0
        numbers = self._drawn[slots, self._used[slots]]
        self._used[slots] += 1
        return numbers


def _check(env: BaseEnv, runner: PolicyRunner) -> None:
    if not isinstance(runner.policy, SearchedPolicy):
        raise PolicyError(
            "The policy does not support parameter search.",
            f"policy {runner.policy.name!r}",
            runner.policy.made_by.__name__,
        ).expected(
            "a SearchedPolicy, as in ES and ARS", "leave the class out of the spec, or derive it from SearchedPolicy"
        )
    if env.possible_agents is not None or env.action_space is None:
        raise _several_agents(env)
    if not env.seeds_every_episode:
        raise EnvError(
            "The environment cannot start each episode from a given seed.",
            getattr(env, "name", type(env).__name__),
            type(env).__name__,
        ).expected(
            "single environments, a rollax VectorEnv, or a SyncVectorEnv or AsyncVectorEnv with "
            "autoreset_mode=AutoresetMode.DISABLED",
            "pass a single environment; rollax steps num_envs_per_worker copies of it together",
        )


def _several_agents(env: BaseEnv) -> EnvError:
    return EnvError(
        "The algorithm supports only one agent, but the environment has several.",
        getattr(env, "name", type(env).__name__),
        "an environment with several agents",
    ).expected("one agent", "use PPO, IMPALA or DQN for several agents")
