"""`CompiledSampler`: a policy and an environment in JAX, compiled together: one call samples a whole fragment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax import trees
from rollax.batch import Fragment, SampleBatch
from rollax.env import checks
from rollax.evaluation.callbacks import overrides
from rollax.evaluation.compiled_filter import CompiledFilter
from rollax.evaluation.compiled_memory import CompiledMemory
from rollax.evaluation.sampler import Sampler
from rollax.evaluation.trajectories import Inputs
from rollax.jaxenv.jax_base_env import JaxBaseEnv
from rollax.jaxenv.sub_environments import Running, replaced
from rollax.policy.jax_policy import JaxPolicy

if TYPE_CHECKING:
    from rollax.evaluation.rollout_worker import RolloutWorker

log = logging.getLogger("rollax.sampling")


class _Carry(NamedTuple):
    """What goes from one step to the next: the episodes, what the policy acts on, the filter's statistics."""

    running: Running
    inputs: Inputs
    moments: Any


class _Rows(NamedTuple):
    """What is played, [N T, ...]: T rows of each of N sub-environments, in time order.

    `inputs` are what the policy acts on, filtered observations and its memory; `new_inputs` what it would act on next
    if no episode ended. With a filter, `unfiltered` has what it has seen: all new observations, and the first ones of
    the episodes that begin after a row; else it is None.
    """

    inputs: Inputs
    actions: Any
    packed: Any
    rewards: Any
    terminateds: Any
    truncateds: Any
    new_inputs: Inputs
    unfiltered: tuple[Any, Any] | None


class CompiledSampler(Sampler):
    """Samples a `JaxBaseEnv` with one policy. The numbers are those of `ColumnSampler`, up to rounding.

    Acting, stepping and resetting are one compiled loop over the steps of a fragment. Random numbers of actions are
    drawn before it, in the order of single steps; those of sub-environments come from their own keys.
    """

    env: JaxBaseEnv

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        ((self._policy_id, self._runner),) = self.runners.items()
        assert isinstance(self._runner.policy, JaxPolicy)
        self._policy = self._runner.policy
        self._filter = CompiledFilter(self._runner.filter, self.env.functions.env.observation_space)
        self._memory = CompiledMemory(self._runner, self.env.num_envs)
        self._inputs: Inputs = {}  # what the policy acts on next
        self._everyone = np.arange(self.env.num_envs)
        self._trajectories = np.full(self.env.num_envs, -1)  # the number of each running trajectory
        self._begun = False
        self._roll = jax.jit(self._traced_rollout, static_argnames=("steps", "explore", "learns"))

    def sample(self) -> tuple[dict[str, Fragment], int]:
        rows, steps = self._play(self.fragment_length), self.fragment_length
        over = (rows.terminateds | rows.truncateds).reshape(self.env.num_envs, steps)
        episodes, trajectories = self._record_episodes(rows.rewards.reshape(over.shape), over)
        last = over.copy()
        last[:, -1] = True
        ends = last.ravel().nonzero()[0]
        columns = {
            **rows.inputs,
            SampleBatch.ACTIONS: rows.actions,
            **self._policy.unpacked(rows.packed),
            SampleBatch.REWARDS: self._runner.clipped(rows.rewards),
            SampleBatch.TERMINATEDS: rows.terminateds,
            SampleBatch.TRUNCATEDS: rows.truncateds,
            SampleBatch.EPS_ID: episodes,
        }
        kept = {SampleBatch.TRAJECTORY_ID: trajectories, SampleBatch.OFF_POLICY: np.zeros(len(episodes), bool)}
        columns |= {name: column for name, column in kept.items() if name in self._runner.columns_of_trajectories}
        fragment = Fragment(columns, ends, trees.index(rows.new_inputs, ends))
        self._begun = True
        return {self._policy_id: fragment}, len(episodes)

    def step(self) -> None:
        rows = self._play(1)
        self._policy.unpacked(rows.packed)  # raises where the model's outputs are not finite
        self._record_episodes(rows.rewards[:, None], (rows.terminateds | rows.truncateds)[:, None])
        self._begun = True

    def restart(self) -> None:
        self._begun = False
        self.episodes.drop_running()

    def _play(self, steps: int) -> _Rows:
        """Plays a number of steps; until the caller has recorded them, an interruption makes fresh episodes begin."""
        if not self._begun:
            self._begin()
        self._begun = False
        policy, count = self._policy, self.env.num_envs
        noise = policy.draw_noise(steps, count) if self.explore else None
        assert self.env.running is not None
        carry = _Carry(self.env.running, self._inputs, self._filter.moments())
        settings = {"steps": steps, "explore": self.explore, "learns": self._filter_learns}
        (self.env.running, self._inputs, _), rows = self._roll(policy.params, policy.extra, carry, noise, **settings)
        rows = self._on_host(jax.tree.map(np.array, rows), steps)  # copies, which others may change
        policy.check_masks(rows.inputs[SampleBatch.OBS])
        self.env.ended(np.unique((rows.terminateds | rows.truncateds).nonzero()[0] // steps))
        return rows

    def _on_host(self, rows: _Rows, steps: int) -> _Rows:
        """Checks rows and gives them the dtypes of the host; its filter sees what the compiled one has seen."""

        def where(row: int) -> str:
            return f"{self.env.name}, sub-environment {row // steps}"

        def checked(obs: trees.Tree) -> trees.Tree:
            return self.env.checked(obs, len(rows.rewards), where)

        def on_host(inputs: Inputs) -> Inputs:
            obs = inputs[SampleBatch.OBS]
            obs = checked(obs) if rows.unfiltered is None else self._filter.on_host(obs)
            return {SampleBatch.OBS: obs, **self._memory.on_host(inputs)}

        rewards = checks.reward_column(rows.rewards, where).astype(np.float32)
        if rows.unfiltered is not None:
            following, begun = map(checked, rows.unfiltered)
            if self._filter_learns:
                self._runner.filter(following)
                self._runner.filter(trees.index(begun, rows.terminateds | rows.truncateds))
        new_inputs, inputs = on_host(rows.new_inputs), on_host(rows.inputs)
        return rows._replace(rewards=rewards, new_inputs=new_inputs, inputs=inputs)

    @property
    def _filter_learns(self) -> bool:
        return self.record and self._runner.learns

    def _begin(self) -> None:
        self.episodes.drop_running()
        rows = self.env.reset_rows(self._everyone, self.episodes.seeds())
        obs = jax.tree.map(jnp.asarray, self._runner.filter(rows.obs, self._filter_learns))
        self._inputs = {SampleBatch.OBS: obs, **self._memory.initial}
        self._begin_episodes(self._everyone)

    def _begin_episodes(self, env_index: np.ndarray) -> None:
        self.episodes.begin(env_index, several_agents=False)
        first, self.next_trajectory = self.next_trajectory, self.next_trajectory + len(env_index)
        self._trajectories[env_index] = np.arange(first, self.next_trajectory)

    def _record_episodes(self, rewards: np.ndarray, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records [N, T] rewards and ends in the episode table; returns each row's episode and trajectory, [N T]."""
        number = np.cumsum(over, axis=1) - over  # of the episode among those of its sub-environment here
        ended = over.sum(axis=1)
        most = int(ended.max()) + 1
        places = (number + most * self._everyone[:, None]).ravel()
        rewards_of = np.bincount(places, rewards.ravel(), most * len(over)).reshape(-1, most)
        lengths_of = np.bincount(places, minlength=most * len(over)).reshape(-1, most)
        ids, trajectories = np.empty((2, len(over), most), np.int64)
        for turn in range(most):
            self.episodes.increase("reward", slice(len(over)), rewards_of[:, turn])
            self.episodes.increase("length", slice(len(over)), lengths_of[:, turn])
            ids[:, turn], trajectories[:, turn] = self.episodes["id"][: len(over)], self._trajectories
            those = (ended > turn).nonzero()[0]
            if len(those):
                sums = self.episodes["reward"][those]
                self.episodes.end_trajectories(those, np.zeros(len(those), np.int64), sums)
                self.episodes.end(those)
                self._begin_episodes(those)
        return ids.ravel()[places], trajectories.ravel()[places]

    def _traced_rollout(
        self, params: Any, extra: Any, carry: _Carry, noise: Any, steps: int, explore: bool, learns: bool
    ) -> tuple[_Carry, _Rows]:
        """Traced by JAX; `noise` is [T, N, K], or None for greedy actions; `learns`: the filter does."""
        functions, action_map = self.env.functions, self._runner.action_map
        filtered, memory = self._filter, self._memory

        def step(carry: _Carry, noise: Any) -> tuple[_Carry, _Rows]:
            running, inputs, moments = carry
            actions, packed, states = self._policy.traced_actions(params, extra, inputs, noise, explore=explore)
            running, outcome = functions.advance(running, action_map(actions))
            flags = outcome.terminated, outcome.truncated
            over = flags[0] | flags[1]
            if learns:
                moments = filtered.seen(moments, outcome.obs, jnp.ones_like(over))
            new_memory = memory.after(actions, states, outcome.reward)
            new_inputs = {SampleBatch.OBS: filtered(moments, outcome.obs), **new_memory}
            running = functions.restart(running, over)
            if learns:
                moments = filtered.seen(moments, running.obs, over)
            begun = {SampleBatch.OBS: filtered(moments, running.obs), **memory.initial}
            unfiltered = (outcome.obs, running.obs) if filtered.active else None
            row = _Rows(inputs, actions, packed, outcome.reward, *flags, new_inputs, unfiltered)
            return _Carry(running, replaced(new_inputs, over, begun), moments), row

        carry, rows = lax.scan(step, carry, noise, length=steps)
        return carry, jax.tree.map(_by_sub_environment, rows)


def _by_sub_environment(column: jax.Array) -> jax.Array:
    """[T, N, ...] -> [N T, ...]."""
    return jnp.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:])


def only_stepwise(worker: RolloutWorker, *, several_rows: bool) -> str:
    """Why the fragments of a worker cannot be sampled by `CompiledSampler`; empty if they can.

    `several_rows`: a policy reads the rows of other agents, or of whole trajectories.
    """
    config, runner, callbacks = worker.config, next(iter(worker.runners.values())), worker.callbacks
    reasons = (
        (bool(config.sample_async), "config key 'sample_async'"),
        (len(worker.runners) > 1, "several policies"),
        (runner.stores_more or several_rows, "a policy that reads 't', 'agent_id' or 'infos'"),
        (config.batch_mode == "complete_episodes", "config key 'batch_mode', complete_episodes"),
        (config.output is not None, "config key 'output'"),
        (overrides(callbacks, "on_episode_start"), "callback on_episode_start"),
        (overrides(callbacks, "on_episode_step"), "callback on_episode_step"),
    )
    found = next((reason for applies, reason in reasons if applies), "")
    if found or not isinstance(runner.policy, JaxPolicy):
        return found or "a policy that is no JaxPolicy"
    return runner.policy.only_stepwise()
