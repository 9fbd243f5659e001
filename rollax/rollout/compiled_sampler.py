"""`CompiledSampler`: samples a whole fragment in one compiled call, with policies and an environment in JAX."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import Fragment, SampleBatch
from rollax.core.introspection import overrides
from rollax.env import checks
from rollax.env.jax.jax_base_env import JaxBaseEnv
from rollax.env.jax.jax_env import Outcome
from rollax.env.jax.sub_environments import ByAgent
from rollax.env.jax.torch_vector_env import TorchBaseEnv
from rollax.policy.devices import Devices
from rollax.policy.traced_acting import Decisions, why_only_stepwise
from rollax.rollout.blocks import Outcomes, Segments
from rollax.rollout.callbacks import Callbacks
from rollax.rollout.compiled_policy import CompiledPolicy, Played, PolicyCarry, PolicyColumns
from rollax.rollout.policy_mapping import check_unchanged, differs_between_episodes, policies_of_agents
from rollax.rollout.sampler import Sampler

if TYPE_CHECKING:
    from rollax.rollout.worker import RolloutWorker

log = logging.getLogger("rollax.sampling")

_EVALUATION_STEPS = 64
"""Steps of one compiled call in an evaluation with greedy actions."""


class Carry(NamedTuple):
    """The carry between steps.

    Args:
        running: the `EpisodeState` of the running episodes; () if a simulator holds their state.
        policies: the carry of each policy.
    """

    running: Any
    policies: dict[str, PolicyCarry]


class Rows(NamedTuple):
    """The rows of T steps: rewards [N, A, T], flags [N, T], and the columns of each policy."""

    rewards: Any
    terminateds: Any
    truncateds: Any
    columns: dict[str, PolicyColumns]

    @property
    def over(self) -> Any:
        """[N, T] whether the episode has ended."""
        return self.terminateds | self.truncateds


class CompiledSampler(Sampler):
    """Samples a `JaxBaseEnv` with policies in JAX. The numbers are the same as with `RowSampler`, up to rounding.

    Acting, stepping and resetting are one compiled loop over the steps of a fragment. The random numbers of actions are
    drawn before the loop, in the order of single steps; sub-environments draw theirs from their own keys.
    """

    env: JaxBaseEnv
    compiled: dict[str, CompiledPolicy]
    """Policy id -> the policy inside of compiled loops; only of policies with an agent."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        ids, agents, shape = list(self.runners), self.env.agents, (self.env.num_envs, len(self.env.agents))
        self._mapped = mapped = policies_of_agents(self.policy_of, agents, ids)
        self.episodes.policies = mapped if len(ids) > 1 else {}
        self._numbers = np.array([ids.index(mapped[agent]) for agent in agents])
        agents_of = {i: [agent for agent in agents if mapped[agent] == i] for i in ids}
        self.compiled = {i: CompiledPolicy(self.runners[i], self.env, mine) for i, mine in agents_of.items() if mine}
        self._everyone = np.arange(self.env.num_envs)
        self._trajectories = np.full(shape, -1)  # the id of each running trajectory
        self._returns = np.zeros(shape)  # the sum of the rewards of each running trajectory so far
        self._begun = False
        # Plays steps. Runs that train together share this function, or replace it by one call for all runs.
        self.roll: Callable[..., tuple[Carry, Rows]] = jax.jit(
            self.traced_rollout, static_argnames=("steps", "learning")
        )

    def sample(self) -> tuple[dict[str, Fragment], int]:
        rows = self._play(self.fragment_length)
        played = self._record(rows)
        fragments = {i: one.fragment(rows.columns[i], played) for i, one in self.compiled.items()}
        self._begun = True
        return fragments, played.over.size

    def step(self) -> None:
        # With exploration each step draws random numbers: surplus steps would change the numbers of later episodes.
        rows = self._play(1 if self.explore else _EVALUATION_STEPS)
        for i, one in self.compiled.items():
            one.acting.fetches(rows.columns[i].packed)  # raises where the model's outputs are not finite
        self._record(rows)
        self._begun = True

    def restart(self) -> None:
        self._begun = False
        self.episodes.drop_running()

    @property
    def runs(self) -> bool:
        """Whether there are running episodes, which the next call continues."""
        return self._begun

    def begun(self, learning: frozenset[str] = frozenset()) -> Carry:
        """The carry at the start of a compiled call; fresh episodes begin if none run.

        `learning` has the policies whose filter learns. A caller that advances the carry itself passes the new carry to
        `played`. If the caller is interrupted before that, fresh episodes begin at the next call.
        """
        check_unchanged(self._mapped, policies_of_agents(self.policy_of, self.env.agents, list(self.runners)))
        if not self._begun:
            self._begin(learning)
        self._begun = False
        assert self.env.running is not None
        return Carry(self.env.running, {i: one.carry() for i, one in self.compiled.items()})

    def taken_back(self) -> None:
        """Goes on from the carry that `begun` returned, after a compiled call whose result is not used."""
        self._begun = True

    def played(self, carry: Carry, outcomes: Rows) -> Played:
        """Goes on from a carry, and records the outcomes of the steps that led to it: rows without columns."""
        self._advanced(carry)
        played = self._record(self._on_host(outcomes, frozenset()))
        self.env.checks.polled(np.flatnonzero(outcomes.over.any(axis=1)))
        self._begun = True
        return played

    def trajectories_of(self, policy_id: str) -> np.ndarray:
        """[N · k] the ids of the running trajectories of the k agents of a policy."""
        return self._trajectories[:, self.compiled[policy_id].places].ravel()

    def _advanced(self, carry: Carry) -> None:
        self.env.running = carry.running
        for i, one in self.compiled.items():
            one.inputs = carry.policies[i].inputs

    def _play(self, steps: int) -> Rows:
        """Plays a number of steps.

        If the caller is interrupted before it has recorded these steps, the next call begins fresh episodes.
        """
        policies = self.compiled
        learning = frozenset(i for i, one in policies.items() if self.record and one.runner.learns)
        carry = Devices().gathered(self.begun(learning))  # after compiled rounds it is on all devices
        noise = {i: one.draw_noise(steps) for i, one in policies.items()} if self.explore else None
        params = {i: one.policy.params for i, one in policies.items()}
        extra = {i: one.policy.extra for i, one in policies.items()}
        carry, rows = self.roll(params, extra, carry, noise, steps=steps, learning=learning)
        self._advanced(carry)
        rows = self._needed(jax.tree.map(np.array, rows))  # copies, which callers may change
        rows = self._on_host(rows, learning)
        self.env.checks.polled(np.flatnonzero(rows.over.any(axis=1)))
        return rows

    def _needed(self, rows: Rows) -> Rows:
        """The rows; in an evaluation, only those up to the end of the last episode that counts."""
        left, over = self.episodes.left, rows.over
        ended = np.zeros(over.shape[1], bool) if left is None else (over.cumsum(axis=1) >= left[:, None]).all(axis=0)
        if not ended[:-1].any():
            return rows
        steps, needed = len(ended), int(ended.argmax()) + 1

        def first(column: np.ndarray) -> np.ndarray:
            return column.reshape(-1, steps, *column.shape[1:])[:, :needed].reshape(-1, *column.shape[1:])

        outcomes = (column[..., :needed] for column in rows[:3])
        return Rows(*outcomes, columns=jax.tree.map(first, rows.columns))

    def _on_host(self, rows: Rows, learning: frozenset[str]) -> Rows:
        """Checks rows and gives them the dtypes of the host."""
        agents, steps = rows.rewards.shape[1:]

        def where(row: int) -> str:
            env_index, place = divmod(row // steps, agents)
            return self.env.where(env_index, self.env.agents[place])

        rewards = checks.reward_column(rows.rewards.ravel(), where).reshape(rows.rewards.shape)
        columns = {i: self.compiled[i].on_host(mine, rows.over, i in learning) for i, mine in rows.columns.items()}
        return rows._replace(rewards=rewards, columns=columns)

    def _begin(self, learning: frozenset[str]) -> None:
        self.episodes.drop_running()
        rows = self.env.reset_rows(self._everyone, self.episodes.seeds())
        for i, one in self.compiled.items():
            one.begin(rows, i in learning)
        self._begin_episodes(self._everyone)

    def _begin_episodes(self, env_index: np.ndarray) -> None:
        self.episodes.begin(env_index, several_agents=False)
        shape = len(env_index), len(self.env.agents)
        first, self.next_trajectory = self.next_trajectory, self.next_trajectory + shape[0] * shape[1]
        self._trajectories[env_index] = np.arange(first, self.next_trajectory).reshape(shape)
        self._returns[env_index] = 0.0

    def _record(self, rows: Rows) -> Played:
        """Records rewards and ends of episodes in the episode table; returns the outcomes by sub-environment."""
        over, left = rows.over, self.episodes.left
        count, steps = over.shape
        begins = over.T.copy()
        if left is not None and (over.sum(axis=1) >= left).all():
            begins[-1] = False  # no episode begins after the last one of an evaluation
        flags = rows.terminateds.T, rows.truncateds.T
        outcomes = Outcomes(np.moveaxis(rows.rewards, 2, 0), *flags, begins)
        segments = Segments.of(outcomes)
        since = segments.after(self.episodes["length"][:count])
        returns = segments.sums(outcomes.rewards, self._returns)
        numbers, self.next_trajectory = segments.numbered(self._trajectories, self.next_trajectory)
        ids = self.episodes.record_block(outcomes, segments, self._numbers, returns)
        self._trajectories, self._returns = numbers[segments.last], returns[segments.last]
        place = segments.place.T
        t = since[place] + np.arange(steps) - segments.start[place]
        trajectories = np.moveaxis(numbers[place], 2, 1)
        return Played(rows.rewards, rows.terminateds, rows.truncateds, ids[place], trajectories, t)

    def traced_rollout(
        self, params: Any, extra: Any, carry: Carry, noise: Any, steps: int, learning: frozenset[str]
    ) -> tuple[Carry, Rows]:
        """Traced by JAX; `noise` has the random numbers of `steps` steps, or is None for greedy actions.

        `params`, `extra` and `noise` are by policy, and `learning` has the policies whose filter learns.
        """
        functions = self.env.functions

        def step(carry: Carry, noise: Any) -> tuple[Carry, Rows]:
            decided, actions = self.traced_decisions(params, extra, carry, noise)
            running, outcome = functions.advance(carry.running, actions)
            running = functions.restart(running, outcome.terminated | outcome.truncated)
            policies, rows = self.traced_rows(carry, decided, outcome, running.obs, learning)
            return Carry(running, policies), rows

        carry, rows = lax.scan(step, carry, noise, length=steps)
        rewards, terminateds, truncateds = (jnp.moveaxis(column, 0, -1) for column in rows[:3])
        return carry, Rows(rewards, terminateds, truncateds, jax.tree.map(_by_row, rows.columns))

    def traced_decisions(
        self, params: Any, extra: Any, carry: Carry, noise: Any
    ) -> tuple[dict[str, Decisions], dict[str, Any]]:
        """The outputs of each policy in one step, and the environment's actions by agent; traced by JAX."""
        decided, actions = {}, {}
        for i, one in self.compiled.items():
            own_noise = None if noise is None else noise[i]
            decided[i], own = one.act(params[i], extra[i], carry.policies[i].inputs, own_noise)
            actions |= own
        return decided, actions

    def traced_rows(
        self, carry: Carry, decided: dict[str, Decisions], outcome: Outcome, begun: ByAgent, learning: frozenset[str]
    ) -> tuple[dict[str, PolicyCarry], Rows]:
        """The carries of the policies after a step, and the rows of the step; traced by JAX.

        `begun` has the observations to act on next: after the end of an episode, the first of the next episode.
        """
        over = outcome.terminated | outcome.truncated
        carries, columns = {}, {}
        for i, one in self.compiled.items():
            carries[i], columns[i] = one.observe(carry.policies[i], decided[i], outcome, begun, over, i in learning)
        return carries, Rows(outcome.reward, outcome.terminated, outcome.truncated, columns)


def _by_row(column: jax.Array) -> jax.Array:
    """[T, R, ...] -> [R · T, ...]."""
    return jnp.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:])


def why_not_compiled(worker: RolloutWorker) -> str:
    """Why the fragments of a worker cannot be sampled by `CompiledSampler` or `SimulatorSampler`; empty if they can."""
    assert isinstance(worker.env, JaxBaseEnv | TorchBaseEnv)
    config, runners, callbacks = worker.config, worker.runners.values(), type(worker.callbacks)
    policy_of = worker.policy_of if len(runners) > 1 else None
    differs = policy_of is not None and differs_between_episodes(policy_of, worker.env.agents)
    reasons = (
        (bool(config.sample_async), "config key 'sample_async'"),
        (differs, "a policy_mapping_fn that differs between episodes"),
        (any(SampleBatch.INFOS in (runner.columns or ()) for runner in runners), "a policy that reads 'infos'"),
        (config.batch_mode == "complete_episodes", "config key 'batch_mode', complete_episodes"),
        (config.recording_key is not None, f"config key '{config.recording_key}'"),
        (overrides(callbacks, Callbacks, "on_episode_start"), "callback on_episode_start"),
        (overrides(callbacks, Callbacks, "on_episode_step"), "callback on_episode_step"),
    )
    found = next((reason for applies, reason in reasons if applies), "")
    return found or next(filter(None, (why_only_stepwise(runner.policy) for runner in runners)), "")
