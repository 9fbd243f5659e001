"""`CompiledPolicy`: a policy inside a compiled loop, with its filter, memory and running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.core.spaces import Path, walk
from rollax.env.jax.jax_base_env import JaxBaseEnv
from rollax.env.jax.jax_env import Outcome
from rollax.env.jax.sub_environments import ByAgent, joined, replaced, split
from rollax.env.rows import Rows
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.running_returns import RunningReturns
from rollax.policy.traced_acting import Decisions, TracedActing
from rollax.policy.traced_moments import TracedMoments, TracedReturns
from rollax.rollout.filters import ObservationFilter
from rollax.rollout.policy_memory import Inputs, initial_memory
from rollax.rollout.policy_runner import PolicyRunner

Statistics = dict[str, TracedReturns]


class PolicyCarry(NamedTuple):
    """The carry of a policy between steps: its next inputs, [N · k, ...], and the statistics of its filter."""

    inputs: Inputs
    moments: Any


class PolicyColumns(NamedTuple):
    """The rows of one policy, [N · k · T, ...]: T of each of k agents in each of N sub-environments, in time order.

    `inputs` are the filtered observations and the memory that the policy acts on. `new_inputs` are the policy's inputs
    after the step, before ended episodes are reset. With a filter, `unfiltered` has the filter's inputs: all new
    observations, and the first observations of episodes that begin after a row; otherwise it is None.
    """

    inputs: Inputs
    actions: Any
    packed: Any
    new_inputs: Inputs
    unfiltered: tuple[Any, Any] | None


class Played(NamedTuple):
    """The outcomes of T steps of N sub-environments with A agents, in NumPy.

    Args:
        rewards: [N, A, T] float64.
        terminateds, truncateds: [N, T].
        episodes: [N, T] the id of the episode.
        trajectories: [N, A, T] the id of the trajectory.
        t: [N, T] the step in the episode.
    """

    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    episodes: np.ndarray
    trajectories: np.ndarray
    t: np.ndarray

    @property
    def over(self) -> np.ndarray:
        """[N, T] whether the episode has ended."""
        return self.terminateds | self.truncateds


class CompiledFilter:
    """An `ObservationFilter` as functions that JAX traces; they have no effect if the filter has no leaves.

    Within a fragment the statistics are float32; the filter on the host adds up the same observations in float64.

    Args:
        host: the filter.
        space: the observation space.
    """

    def __init__(self, host: ObservationFilter, space: spaces.Space) -> None:
        self._host, self._space = host, space
        self.active = bool(host.leaves)

    def moments(self) -> dict[Path, TracedMoments]:
        """The current statistics of the filter on the host, by leaf."""
        return {path: TracedMoments.of(leaf) for path, leaf in self._host.leaves.items()}

    def seen(self, moments: Mapping[Path, TracedMoments], obs: trees.Tree, counted: Any) -> dict[Path, TracedMoments]:
        """The statistics after adding the rows of [N, ...] observations for which [N] `counted` is true."""
        after: dict[Path, TracedMoments] = {}

        def add(_: spaces.Space, path: Path, leaf: Any) -> None:
            if path in moments:
                after[path] = moments[path].with_rows(leaf, counted)

        walk(add, self._space, obs)
        return after

    def __call__(self, moments: Mapping[Path, TracedMoments], obs: trees.Tree) -> trees.Tree:
        """The filtered observations."""

        def standardized(_: spaces.Space, path: Path, leaf: Any) -> Any:
            if path not in moments:
                return leaf
            scaled = (leaf - moments[path].mean) / moments[path].deviation
            return jnp.clip(scaled, -self._host.clip, self._host.clip)

        return walk(standardized, self._space, obs) if moments else obs

    def on_host(self, obs: trees.Tree) -> trees.Tree:
        """Filtered columns in NumPy with the dtypes that the filter on the host returns: JAX has no int64."""

        def cast(leaf: spaces.Space, path: Path, part: NDArray) -> NDArray:
            return part if path in self._host.leaves else part.astype(leaf.dtype)

        return walk(cast, self._space, obs)


class CompiledPolicy:
    """One policy of a `CompiledSampler`.

    Args:
        runner: the runner of the policy.
        env: the environment.
        agents: the k agents of the policy, in the order of the environment.
    Attributes:
        inputs: the inputs of the next forward pass.
        places: [k] the positions of the policy's agents among all agents of the environment.
    """

    def __init__(self, runner: PolicyRunner, env: JaxBaseEnv, agents: Sequence[str]) -> None:
        assert isinstance(runner.policy, JaxPolicy)
        self.runner, self.policy, self.agents = runner, runner.policy, agents
        self.acting = TracedActing(runner.policy)
        self.places = np.array([env.agents.index(agent) for agent in agents])
        self._env, self._rows = env, env.num_envs * len(agents)
        self._slots = (np.arange(env.num_envs)[:, None] * len(env.agents) + self.places).ravel()
        self._filter = CompiledFilter(runner.filter, self.policy.observation_space)
        moments = self.policy.running_statistics.items()
        self._returns = {name: one for name, one in moments if isinstance(one, RunningReturns)}
        initial, stored = initial_memory(runner)
        self._stored_memory = {name: initial[name] for name in stored}
        # The memory at the start of trajectories, [N · k, ...]; no columns if the policy has no memory.
        self._memory: Inputs = trees.tree_map(
            lambda row: jnp.repeat(jnp.asarray(row)[None], self._rows, axis=0), initial
        )
        self.inputs: Inputs = {}

    def begin(self, rows: Rows, learns: bool) -> None:
        """Takes the first observations of all sub-environments; `learns`: whether the filter learns from them."""
        obs = self.runner.filter(rows.observations(self._slots, self.policy.observation_space), learns)
        self.inputs = {SampleBatch.OBS: jax.tree.map(jnp.asarray, obs), **self._memory}

    def carry(self) -> PolicyCarry:
        """The carry at the start of a compiled call."""
        return PolicyCarry(self.inputs, self._filter.moments())

    def statistics(self, trajectories: NDArray[np.integer]) -> Statistics:
        """The running statistics, float32 inside of a compiled call; `trajectories` [R] are the running ones.

        After the call, `add_to_returns` adds the same rewards to the statistics on the host, in float64.
        """
        return {name: TracedReturns.of(one, self._slots, trajectories) for name, one in self._returns.items()}

    def draw_noise(self, steps: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The random numbers for the actions of `steps` steps."""
        return self.acting.draw_noise(steps, self._rows)

    # Traced by JAX.

    def act(self, params: Any, extra: Any, inputs: Inputs, noise: Any) -> tuple[Decisions, ByAgent]:
        """The policy's outputs, and the environment's actions by agent.

        `noise` has the random numbers of one step; None for greedy actions.
        """
        decisions = self.acting.act(params, extra, inputs, noise)
        return decisions, split(self.runner.action_map(decisions.actions), self.agents)

    def observe(
        self, carry: PolicyCarry, decided: Decisions, outcome: Outcome, begun: ByAgent, over: jax.Array, learns: bool
    ) -> tuple[PolicyCarry, PolicyColumns]:
        """The carry after a step, and the rows of the step.

        Args:
            carry: the carry before the step.
            decided: the policy's outputs in the step.
            outcome: the outcome of the step.
            begun: the observations to act on next: after the end of an episode, the first of the next episode.
            over: [N] whether an episode has ended and a new one begun.
            learns: whether the filter learns.
        """
        inputs, moments = carry
        following, first = joined(outcome.obs, self.agents), joined(begun, self.agents)
        rewards, over = outcome.reward[:, self.places].reshape(-1), jnp.repeat(over, len(self.agents))
        if learns:
            moments = self._filter.seen(moments, following, jnp.ones_like(over))
        new_inputs = {SampleBatch.OBS: self._filter(moments, following), **self._memory_after(decided, rewards)}
        if learns:
            moments = self._filter.seen(moments, first, over)
        first_inputs = {SampleBatch.OBS: self._filter(moments, first), **self._memory}
        unfiltered = (following, first) if self._filter.active else None
        row = PolicyColumns(inputs, decided.actions, decided.packed, new_inputs, unfiltered)
        return PolicyCarry(replaced(new_inputs, over, first_inputs), moments), row

    def _memory_after(self, decided: Decisions, rewards: jax.Array) -> Inputs:
        """The memory after decisions and the rewards that followed, if the trajectories continue."""
        after = {
            SampleBatch.STATE_IN: decided.states,
            SampleBatch.PREV_ACTIONS: self.runner.action_map.received(decided.actions),
            SampleBatch.PREV_REWARDS: self.runner.reward_map(rewards),
        }
        return trees.tree_map(lambda column, part: part.astype(column.dtype), self._memory, after)

    def add_rewards(self, statistics: Statistics, rewards: jax.Array, over: jax.Array) -> Statistics:
        """The statistics after T steps with [R, T] rewards, where [R, T] `over` is true at the ends of episodes."""
        returns = self._returns
        return {
            name: one.with_rewards(rewards, over & returns[name].episodic, returns[name].gamma)
            for name, one in statistics.items()
        }

    # On the host.

    def on_host(self, columns: PolicyColumns, over: np.ndarray, learns: bool) -> PolicyColumns:
        """Checks columns and converts them to the dtypes of the host; if `learns`, the host's filter learns from them.

        `over` [N, T] is true where episodes have ended.
        """
        steps: int = over.shape[1]

        def where(row: int) -> str:
            env_index, place = divmod(row // steps, len(self.agents))
            return self._env.where(env_index, self.agents[place])

        def checked(obs: trees.Tree) -> trees.Tree:
            return self._env.checks.columns(self.policy.observation_space, obs, self._rows * steps, where)

        def on_host(inputs: Inputs) -> Inputs:
            obs = inputs[SampleBatch.OBS]
            obs = checked(obs) if columns.unfiltered is None else self._filter.on_host(obs)
            # The stored parts of the memory, with the dtypes of the host: JAX has no int64.
            memory = trees.tree_map(
                lambda row, column: column.astype(row.dtype, copy=False), self._stored_memory, inputs
            )
            return {SampleBatch.OBS: obs, **memory}

        if columns.unfiltered is not None:
            following, begun = map(checked, columns.unfiltered)
            if learns:
                self.runner.filter(following)
                self.runner.filter(trees.index(begun, self._of_agents(over)))
        new_inputs, inputs = on_host(columns.new_inputs), on_host(columns.inputs)
        self.policy.check_masks(inputs[SampleBatch.OBS])
        return columns._replace(new_inputs=new_inputs, inputs=inputs)

    def fragment(self, columns: PolicyColumns, played: Played) -> Fragment:
        """The rows of the policy's agents, sorted by sub-environment, agent and time."""
        over = played.over
        over[:, -1] = True
        ends = self._of_agents(over).nonzero()[0]
        rows = {
            **columns.inputs,
            SampleBatch.ACTIONS: columns.actions,
            **self.acting.fetches(columns.packed),
            SampleBatch.REWARDS: self._rewards(played),
            SampleBatch.TERMINATEDS: self._of_agents(played.terminateds),
            SampleBatch.TRUNCATEDS: self._of_agents(played.truncateds),
            SampleBatch.EPS_ID: self._of_agents(played.episodes),
        }
        count, steps = over.shape
        optional: dict[str, Callable[[], np.ndarray]] = {
            SampleBatch.TRAJECTORY_ID: lambda: self._trajectories(played),
            SampleBatch.OFF_POLICY: lambda: np.zeros(self._rows * steps, bool),
            SampleBatch.T: lambda: self._of_agents(played.t),
            SampleBatch.SLOT: lambda: np.repeat(self._slots, steps),
            SampleBatch.AGENT_ID: lambda: np.tile(np.repeat(np.array(self.agents, object), steps), count),
        }
        wanted = self.runner.columns
        rows |= {name: column() for name, column in optional.items() if wanted is None or name in wanted}
        return Fragment(rows, ends, trees.index(columns.new_inputs, ends))

    def add_to_returns(self, played: Played) -> None:
        """Adds the rewards of rows that stay on the device to the running statistics of the policy."""
        if not self.policy.running_statistics:
            return
        rows = {
            SampleBatch.REWARDS: self._rewards(played),
            SampleBatch.TRAJECTORY_ID: self._trajectories(played),
            SampleBatch.SLOT: np.repeat(self._slots, played.over.shape[1]),
        }
        self.policy.add_to_returns(SampleBatch(rows))

    def _rewards(self, played: Played) -> np.ndarray:
        return self.runner.reward_map(played.rewards[:, self.places].ravel().astype(np.float32))

    def _trajectories(self, played: Played) -> np.ndarray:
        return played.trajectories[:, self.places].ravel()

    def _of_agents(self, column: np.ndarray) -> np.ndarray:
        """Repeats [N, T] values of sub-environments for each row, [N · k · T]."""
        return np.repeat(column, len(self.agents), axis=0).ravel()
