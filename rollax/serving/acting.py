"""`Actor`: forward passes of a policy for the agents of many episodes, with their memories."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.core import spaces, trees
from rollax.core.introspection import overrides
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.policy import Policy
from rollax.policy.update_plan import acting_bucket
from rollax.rollout.policy_runner import PolicyRunner

_MOST_ROWS = 1_024
_QUICK = 0.002
_TRUST = 0.1
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class AgentMemory:
    """A policy's memory of one agent of an episode.

    Attributes:
        state: the parts of the recurrent state, without a batch axis.
        prev_action: the last action that the environment received, in the policy's scale; None at the start.
        reward: the sum of the rewards since the last action was requested or logged.
    """

    __slots__ = ("actor", "prev_action", "reward", "state")

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.state: Sequence[np.ndarray] = actor.initial_state
        self.prev_action: Any = None
        self.reward = 0.0

    def take_reward(self) -> float:
        """Returns `reward`, which is an input of the next action, and resets it to 0."""
        reward, self.reward = self.reward, 0.0
        return reward


class Actor:
    """A policy that acts for many agents at once, exploring or greedily.

    Attributes:
        recurrent: whether the policy has a recurrent state.
        remembers: whether actions depend on the `AgentMemory`: the state, or the previous action and reward.
    """

    def __init__(self, runner: PolicyRunner, explore: bool) -> None:
        self.runner, self.explore = runner, explore
        self.policy: Policy = runner.policy
        self.recurrent = bool(self.policy.memory_of(1, None, None, None)["state_batches"])
        self.initial_state = [np.asarray(part) for part in self.policy.get_initial_state()]
        self._takes_action = runner.takes("prev_action_batch")
        takes_previous = self._takes_action or runner.takes("prev_reward_batch")
        self.remembers = self.recurrent or takes_previous or (explore and bool(self.initial_state))
        self._greedy: Callable[[trees.Tree], trees.Tree] | None = None
        if isinstance(self.policy, JaxPolicy) and not (explore or self.remembers):
            own = overrides(type(self.policy), JaxPolicy, "compute_actions")
            self._greedy = None if own else self.policy.act_greedily
        self._filters = bool(runner.filter.leaves)
        self._maps = not runner.action_map.identity
        self._zeros = spaces.zeros(self.policy.action_space, 1)
        self._seconds: dict[int, float] = {}  # padded rows -> seconds of a compiled pass

    def is_quick(self, rows: int) -> bool:
        """Whether a pass of that many rows is compiled and takes less than two milliseconds."""
        return self._seconds.get(acting_bucket(rows), 1.0) < _QUICK

    def warm_up(self, rows: int) -> None:
        """Compiles the passes of 1, 2, 4, ... rows, up to at least `rows`."""
        obs = trees.index(_any_observation(self.policy.observation_space), 0)
        sizes = [1 << power for power in range(acting_bucket(rows).bit_length())]
        for size in [size for size in sizes for _ in range(2)]:  # the second pass is timed
            self.act([AgentMemory(self) for _ in range(size)], [obs] * size, [None] * size)

    def act(self, memories: Sequence[AgentMemory], values: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """The actions for the environment.

        Args:
            memories: the memories of N different agents; updated.
            values: N observations in the dtypes of the space.
            given: N logged actions, with None for actions that the policy chooses.
        """
        return self.act_on(columns_of(values), memories, given, [memory.take_reward() for memory in memories])

    def act_on(
        self, columns: trees.Tree, memories: Sequence[AgentMemory], given: Sequence[Any], rewards: Sequence[float]
    ) -> list[Any]:
        """As `act`, for columns of N observations and the N rewards taken from the memories.

        `memories`, `given` and `rewards` are not read unless the actor remembers.
        """
        rows = trees.length(columns)
        if rows <= _MOST_ROWS:
            return self._pass(columns, rows, memories, given, rewards)
        chosen: list[Any] = []
        for start in range(0, rows, _MOST_ROWS):
            part = slice(start, start + _MOST_ROWS)
            few = trees.index(columns, part)
            chosen += self._pass(few, trees.length(few), memories[part], given[part], rewards[part])
        return chosen

    def _pass(
        self,
        columns: trees.Tree,
        rows: int,
        memories: Sequence[AgentMemory],
        given: Sequence[Any],
        rewards: Sequence[float],
    ) -> list[Any]:
        """One forward pass, timed."""
        began = time.perf_counter()
        runner, fetches = self.runner, _NOTHING
        obs = runner.filter(columns, update=False) if self._filters else columns
        if self._greedy is not None:
            actions = self._greedy(obs)
            runner.check_actions(actions, rows)
        else:
            context = self._memory(memories, rewards) if self.remembers else {}
            actions, states, fetches = runner.act(obs, self.explore, self.policy.timestep, context)
            if self.remembers:
                self._remember(memories, actions, states, given)
        # The action map returns copies; without it, `rows` copies the actions of an array.
        if self._maps or not isinstance(actions, np.ndarray):
            actions = runner.action_map(actions)
        chosen = self.rows(actions, fetches)
        self._measured(acting_bucket(rows), time.perf_counter() - began)
        return chosen

    def _measured(self, bucket: int, seconds: float) -> None:
        known = self._seconds.get(bucket)
        if known is None:
            self._seconds[bucket] = 1.0  # the time of this pass included compilation
        else:
            # A single measurement can include an interruption by another process.
            self._seconds[bucket] = seconds if seconds < known else known + _TRUST * (seconds - known)

    def rows(self, actions: trees.Tree, fetches: Mapping[str, Any]) -> list[Any]:
        """The result of `act`, from actions for the environment and further columns that the policy returned."""
        return actions.tolist() if isinstance(actions, np.ndarray) else trees.unstack(actions)

    def _memory(self, memories: Sequence[AgentMemory], rewards: Sequence[float]) -> dict[str, Any]:
        states = [np.stack(parts) for parts in zip(*(memory.state for memory in memories), strict=True)]
        zero = trees.index(self._zeros, 0)
        actions = trees.stack([zero if memory.prev_action is None else memory.prev_action for memory in memories])
        clipped = self.runner.reward_map(np.array(rewards, np.float32))
        return {"state_batches": states, "prev_action_batch": actions, "prev_reward_batch": clipped}

    def _remember(
        self, memories: Sequence[AgentMemory], actions: trees.Tree, states: Sequence[Any], given: Sequence[Any]
    ) -> None:
        arrays, action_map = [np.asarray(part) for part in states], self.runner.action_map
        actions = action_map.received(actions) if self._takes_action else actions
        for row, memory in enumerate(memories):
            memory.state = [part[row] for part in arrays]
            if given[row] is None:
                memory.prev_action = trees.index(actions, row)
            else:
                one = spaces.stack(self.policy.action_space, [given[row]])
                memory.prev_action = trees.index(action_map.received(action_map.to_policy(one)), 0)


def _any_observation(space: Space) -> trees.Tree:
    """Columns of one observation: numbers near 0 within the bounds; 1 in action masks."""

    def column(leaf: Space, path: spaces.Path) -> np.ndarray:
        low, high = spaces.bounds(leaf)
        value = 1 if spaces.ACTION_MASK in path else 0
        return np.broadcast_to(np.clip(value, low, high), (1, *(leaf.shape or ()))).astype(leaf.dtype)

    return spaces.walk(column, space)


def columns_of(values: Sequence[Any]) -> trees.Tree:
    """Columns of single observations."""
    return np.array(values) if isinstance(values[0], np.ndarray | np.generic) else trees.stack(values)
