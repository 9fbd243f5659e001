"""`PolicyRunner`: a policy with its observation filter, action map and checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from rollax.batch import SampleBatch
from rollax.config import TrainerConfig
from rollax.core import spaces, trees
from rollax.core.introspection import accepted
from rollax.core.other_names import OtherNamesOfRunner, naming_arguments
from rollax.core.running_statistics import RunningStatistics
from rollax.core.space_codec import outside
from rollax.errors import NonFiniteError, PolicyError, text_of
from rollax.policy.policy import Policy
from rollax.rollout.actions import ActionMap, RewardMap
from rollax.rollout.filters import ObservationFilter

_STORED_IF_READ = frozenset({SampleBatch.T, SampleBatch.SLOT, SampleBatch.AGENT_ID, SampleBatch.INFOS})
_KEPT_ANYWAY = frozenset({SampleBatch.TRAJECTORY_ID, SampleBatch.OFF_POLICY})


class PolicyRunner(OtherNamesOfRunner):
    """Runs a policy on raw observations.

    Args:
        policy: chooses the actions.
        observation_filter: filters the policy's observations.
        action_map: maps the policy's actions to the environment's.
        learns: whether the policy is trained; otherwise sampling does not change its running statistics.
        accepts_off_policy: whether samples may hold actions that the policy has not chosen.
        clip_rewards: True keeps only the signs of the policy's rewards; a number bounds rewards to ± this number.
    Attributes:
        running_statistics: the statistics of the filter and of the policy together.
    """

    def __init__(
        self,
        policy: Policy,
        observation_filter: ObservationFilter,
        action_map: ActionMap,
        *,
        learns: bool = True,
        accepts_off_policy: bool = True,
        clip_rewards: bool | float | None = None,
    ) -> None:
        self.policy = policy
        self.filter = observation_filter
        self.action_map = action_map
        self.learns = learns
        self.accepts_off_policy = accepts_off_policy
        self.reward_map = RewardMap(clip_rewards)
        own = policy.running_statistics
        for moments in own.values():
            moments.frozen = not learns
        # The prefixes of a filter's leaves never contain "~/".
        self.running_statistics = RunningStatistics(
            {**observation_filter.moments, **{f"~/{name}/": moments for name, moments in own.items()}}
        )
        self._accepted = accepted(policy.compute_actions) if policy.arguments is None else policy.arguments
        self.takes_infos, self.takes_episodes = self.takes("info_batch"), self.takes("episodes")
        self._choices = [(path, leaf) for path, leaf in spaces.leaves(policy.action_space) if not isinstance(leaf, Box)]
        self.columns = policy.sampled_columns
        self.stores_more = True
        self.store(frozenset())

    @classmethod
    def of(
        cls, policy: Policy, config: TrainerConfig, observation_filter: ObservationFilter, **learning: Any
    ) -> PolicyRunner:
        """The runner of a policy, with a config's changes of actions and rewards; `learning`: further arguments."""
        actions = ActionMap(
            policy.action_space, clip_actions=config.clip_actions, normalize_actions=config.normalize_actions
        )
        return cls(policy, observation_filter, actions, clip_rewards=config.clip_rewards, **learning)

    def __repr__(self) -> str:
        return f"PolicyRunner({self.policy!r}, filter={self.filter!r})"

    def takes(self, argument: str) -> bool:
        """Whether the policy's `compute_actions` accepts this argument."""
        return self._accepted is None or argument in self._accepted

    @property
    def columns_of_trajectories(self) -> frozenset[str]:
        """The columns that sampling always records and that the policy's batches keep."""
        wanted = self.columns
        return _KEPT_ANYWAY if wanted is None else _KEPT_ANYWAY & wanted

    def without_recorded(self, fetches: dict[str, Any]) -> dict[str, Any]:
        """The columns to learn from, without the columns that are only recorded."""
        return {name: column for name, column in fetches.items() if name not in self.policy.recorded_columns}

    @property
    def settings(self) -> dict[str, Any]:
        """How policy actions and rewards differ from the environment's actions and rewards, as JSON values."""
        return {**self.reward_map.settings, **self.action_map.settings}

    def store(self, names: frozenset[str]) -> None:
        """Stores these columns too, for example because another policy reads them."""
        if self.columns is not None:
            self.columns = self.columns | names
            self.stores_more = not self.columns.isdisjoint(_STORED_IF_READ)

    def act(
        self, obs: trees.Tree, explore: bool, timestep: int, context: dict[str, Any]
    ) -> tuple[trees.Tree, Sequence[Any], dict[str, Any]]:
        """Action columns, state and fetches for filtered observations; lists of actions become arrays.

        Args:
            obs: columns of N filtered observations.
            explore: False for greedy actions.
            timestep: steps trained on so far, in the unit of `count_steps_by`.
            context: further arguments of `compute_actions`, which are passed if the policy accepts them.
        Raises:
            PolicyError: the policy did not return `(actions, states, fetches)` of the right lengths, or a discrete
                action is outside the action space.
            NonFiniteError: a NaN or infinite action.
        """
        given = {"state_batches": [], **context, "explore": explore, "timestep": timestep}
        result = self.policy.compute_actions(obs, **{name: given[name] for name in given if self.takes(name)})
        if not (isinstance(result, tuple) and len(result) == 3):
            got = type(result).__name__
            raise self._refuse("compute_actions did not return three values.", got, "(actions, states, {})")
        actions, states, fetches = result
        if not isinstance(actions, np.ndarray):
            actions = self.action_columns(actions)
        rows = trees.length(obs)
        self.check_actions(actions, rows)
        self._check_choices(actions)
        columns = {name: self._fetched(name, column, rows) for name, column in fetches.items()}
        return actions, states, columns

    @naming_arguments("ACT")
    def compute_actions(
        self,
        observations: Any,
        states: Sequence[Any] | None = None,
        explore: bool = False,
        prev_actions: Any = None,
        prev_rewards: Any = None,
    ) -> tuple[trees.Tree, list[np.ndarray], dict[str, Any]]:
        """`(actions, states, fetches)` for N raw observations, with actions in the environment's action space.

        Batches are padded to a power of two, so batches of up to N observations compile at most 1 + ⌈log2 N⌉ versions.

        Args:
            observations: a list of N observations as the environment returns them, or N observations as columns: an
                array [N, ...], for a Dict or Tuple space a dict or tuple of arrays. With the config key `frame_stack`,
                each observation is a stack.
            states: the states that the previous call returned, each [N, ...]; None for a policy without memory, or at
                the start of all N episodes.
            explore: False for greedy actions.
            prev_actions: the N actions that the previous call returned; None at the start of the episodes.
            prev_rewards: [N] the rewards after these actions.
        Returns:
            Columns of N actions: an array [N, ...], or a dict or tuple of arrays, like the action space; the states for
            the next call, empty for a policy without memory; and further columns, such as `action_logp`.
        Raises:
            EnvError, NonFiniteError: observations outside the observation space.
        """
        from rollax.policy.raw_observations import columns_for  # loaded only where it is used

        columns = columns_for(self.policy, observations)
        memory = self._memory(trees.length(columns), states, prev_actions, prev_rewards)
        return self._actions(columns, explore, memory)

    @naming_arguments("ACT")
    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        explore: bool = False,
        prev_action: Any = None,
        prev_reward: float | None = None,
    ) -> Any:
        """The environment action for one raw observation; for many, `compute_actions` is faster.

        Args:
            obs: one observation, as the environment returns it; with the config key `frame_stack`, a stack of them.
            state: the `state_out` of the step before; None for a policy without memory, or at the start of a
                trajectory.
            explore: False for the greedy action.
            prev_action: the previous action, as it was returned; None at the start of a trajectory.
            prev_reward: the reward after this action; None at the start of a trajectory.
        Returns:
            The action; for a policy with memory, or if a state was passed, `(action, state_out, fetches)`.
        Raises:
            EnvError, NonFiniteError: an observation outside the observation space.
        """
        from rollax.policy.raw_observations import columns_for  # as in `compute_actions`

        columns = columns_for(self.policy, obs, one=True)
        states = None if state is None else [np.asarray(part)[None] for part in state]
        previous = (None if part is None else [part] for part in (prev_action, prev_reward))
        memory = self._memory(1, states, *previous)
        actions, states_out, fetches = self._actions(columns, explore, memory)
        action = trees.unstack(actions)[0]
        if state is None and not memory["state_batches"]:
            return action
        return action, [part[0] for part in states_out], {name: column[0] for name, column in fetches.items()}

    def _memory(self, rows: int, states: Sequence[Any] | None, prev_actions: Any, prev_rewards: Any) -> dict[str, Any]:
        actions = None if prev_actions is None else self.action_map.to_policy(self.action_columns(prev_actions))
        rewards = None if prev_rewards is None else self.reward_map(np.asarray(prev_rewards, np.float32))
        return self.policy.memory_of(rows, states, actions, rewards)

    def _actions(
        self, columns: trees.Tree, explore: bool, memory: dict[str, Any]
    ) -> tuple[trees.Tree, list[np.ndarray], dict[str, Any]]:
        actions, states, fetches = self.act(self.filter(columns, update=False), explore, self.policy.timestep, memory)
        return self.action_map(actions), [np.asarray(part) for part in states], fetches

    def _fetched(self, name: str, column: Any, rows: int) -> trees.Tree:
        if not isinstance(column, np.ndarray):
            column = _array(column)
        elif column.ndim and len(column) == rows:
            return column
        if any(leaf.ndim == 0 or len(leaf) != rows for leaf in trees.leaves(column)):
            got = [leaf.shape for leaf in trees.leaves(column)]
            raise self._refuse(f"extra_fetches[{name!r}] has the wrong number of rows.", got, f"{rows} rows")
        return column

    def action_columns(self, actions: Any) -> trees.Tree:
        """Actions as columns, from columns or from a list of single actions; PolicyError if these cannot be stacked."""
        if not isinstance(actions, list):
            return trees.tree_map(np.asarray, actions)
        try:
            return spaces.stack(self.policy.action_space, actions)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise PolicyError(f"The list of actions cannot be stacked: {error}.", self.policy.label, actions).expected(
                f"elements of {self.policy.action_space}", "pass or return one element of the action space for each row"
            ) from error

    def check_actions(self, actions: trees.Tree, rows: int) -> None:
        """Raises PolicyError unless there are actions for `rows` rows, NonFiniteError if one is NaN or infinite."""
        for leaf in (actions,) if isinstance(actions, np.ndarray) else trees.leaves(actions):
            if leaf.ndim == 0 or len(leaf) != rows:
                raise self._refuse("compute_actions returned the wrong number of actions.", leaf.shape, f"{rows} rows")
            if leaf.dtype.kind == "f" and np.count_nonzero(np.isfinite(leaf)) != leaf.size:
                row = int(np.argwhere(~np.isfinite(leaf))[0][0])
                raise NonFiniteError.not_finite(
                    "The action", f"policy {self.policy.name!r}, row {row} of {rows}", leaf[row]
                ).fix("look for NaN in the weights and the observations")

    def _check_choices(self, actions: trees.Tree) -> None:
        """Raises a PolicyError for the first action outside the space, in leaves that are no Box; all rows at once."""
        try:
            found = self._outside(actions)
        except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
            what, got = "The actions do not have the structure of the action space.", type(error).__name__
            raise self._refuse(what, f"{got}: {text_of(error)}", str(self.policy.action_space)) from error
        if found is not None:
            row, got, leaf = found
            raise PolicyError.not_in_space("An action", f"{self.policy.label}, row {row}", got, leaf).fix(
                "return integers within the action space, one per observation"
            )

    def _outside(self, actions: trees.Tree) -> tuple[int, object, Space] | None:
        """The row of the first action outside the space, the action, and the leaf of the space; None if all fit."""
        for path, leaf in self._choices:
            column = spaces.at(actions, path)
            if column.dtype.kind not in "iub" or column.shape[1:] != leaf.shape:
                return 0, f"{column.dtype} of shape {column.shape[1:]}: {column[0]!r}", leaf
            wrong = outside(leaf, column)
            if np.count_nonzero(wrong):
                row = int(np.argwhere(wrong)[0][0])
                return row, column[row], leaf
        return None

    def _refuse(self, what: str, got: Any, expected: str) -> PolicyError:
        return PolicyError(what, self.policy.label, got).expected(
            expected, "return (actions, state_outs, extra_fetches), one action per observation"
        )


def _array(column: Any) -> trees.Tree:
    return trees.tree_map(np.asarray, column) if isinstance(column, dict | tuple) else np.asarray(column)
