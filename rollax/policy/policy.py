"""`Policy`: the interface of all policies, NumPy in and NumPy out; only `compute_actions` is abstract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space

from rollax.batch import DEFAULT_POLICY, Fragment, SampleBatch
from rollax.core import spaces, trees
from rollax.core.introspection import call_accepted
from rollax.core.running_statistics import RunningMoments
from rollax.core.spaces import space_text
from rollax.core.stored_values import read_count, read_dict, read_value
from rollax.errors import PolicyError
from rollax.policy.replayed import SINGLE_ROWS, Draw

Weights = Mapping[str, Any]
ActionsResult = tuple[Any, Sequence[Any], Mapping[str, Any]]


class Policy(ABC):
    """Chooses actions for batches of observations, and may learn from batches of experience.

    `compute_actions` may take fewer arguments: rollax passes only the arguments that it accepts, by keyword. Actions
    and states may be lists or arrays; weights may be plain numbers.

    Args:
        observation_space: space of one observation, before the observation filter.
        action_space: space of one action.
        config: the algorithm's config, or any dict.
    """

    batch_columns: ClassVar[frozenset[str] | None] = None
    """The columns to record while sampling. None records every column except `infos`; `prev_actions` and `prev_rewards`
    are recorded only if they are arguments of `compute_actions`."""

    config_class: ClassVar[Any] = None
    """The class that validates a config given as a dict if there is no trainer; None for `TrainerConfig`."""

    arguments: frozenset[str] | None = None
    """The arguments of `compute_actions` to pass; None: all arguments that the method accepts."""

    recorded_columns: frozenset[str] = frozenset()
    """The columns that `compute_actions` returns only for `behaviour`, when experience is written to files."""

    sees_all_agents: bool = False
    """Whether the column `critic_obs` is filled with the observations and actions of all agents; see `JointRows`."""

    learns_off_policy: bool = False
    """Whether the policy can learn from the actions of another policy."""

    acts_while_learning: ClassVar[bool] = False
    """Whether another thread may call `compute_actions` and `postprocess_rows` while the policy learns."""

    minibatch_size: int | None = None
    """Rows of one update from a replay buffer, if `learn_on_batch` makes several updates; None if it makes one."""

    worker_index: int = 0
    """The rollout worker that the policy acts in: from 1 to `num_workers`, 0 in the driver's process."""

    num_workers: int = 0
    """The number of remote rollout workers."""

    replayed: Draw = SINGLE_ROWS
    """How batches for this policy are drawn from a replay buffer."""

    replayed_columns: tuple[str, ...] = ()
    """Columns that `postprocess_rows` adds and a replay buffer stores, in addition to the columns of transitions."""

    statistics: tuple[str, ...] = ()
    """The names of the statistics of `learn_on_batch`; results contain `None` for each before the first update."""

    custom_state_attributes: ClassVar[frozenset[str]] = frozenset()
    """Attributes with networks or JAX arrays that an override of `get_state` stores. The sets of all base classes are
    added to this set; `own_arrays` stores all other attributes."""

    running_statistics: Mapping[str, RunningMoments] = MappingProxyType({})
    """Name -> running moments that `prepare_rows` or `postprocess_rows` updates. They are merged over workers like
    observation filters, and stored in checkpoints."""

    name: str = DEFAULT_POLICY
    """The policy id."""

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config: Any = {} if config is None else config
        self.timestep = 0

    def __repr__(self) -> str:
        spaces = f"{space_text(self.observation_space)} -> {space_text(self.action_space)}"
        return f"{type(self).__name__}({self.name!r}, {spaces})"

    @classmethod
    def make_policy(cls, observation_space: Space, action_space: Space, config: Any = None) -> Policy:
        """A policy of this class; the counterpart of `Algorithm.make_policy`."""
        return cls(observation_space, action_space, config)

    @property
    def made_by(self) -> type:
        """The class whose `make_policy` makes this kind of policy: the policy's class, or its algorithm's class."""
        return type(self)

    @property
    def label(self) -> str:
        """The id and the class of the policy, for errors."""
        return f"policy {self.name!r}, class {type(self).__name__}"

    @property
    def sampled_columns(self) -> frozenset[str] | None:
        """The columns that sampling fills for this config and model."""
        return self.batch_columns

    @abstractmethod
    def compute_actions(
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        info_batch: Sequence[dict] | None = None,
        episodes: Sequence[Any] | None = None,
        explore: bool = True,
        timestep: int = 0,
    ) -> ActionsResult:
        """Actions for N observations.

        Args:
            obs_batch: columns of N observations: [N, ...], structured like the observation space.
            state_batches: recurrent state, each part [N, ...].
            prev_action_batch: columns of the N previous actions; zeros at the start of a trajectory.
            prev_reward_batch: [N] the previous rewards; zeros at the start of a trajectory.
            info_batch: N info dicts.
            episodes: N running episodes.
            explore: False for the greedy action.
            timestep: steps trained on so far, in the unit of `count_steps_by`.
        Returns:
            `(actions, state_outs, extra_fetches)`: columns of N actions, the next recurrent state, and further
            columns [N, ...] of the batch.
        """

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        explore: bool = False,
        prev_action: Any = None,
        prev_reward: float | None = None,
    ) -> Any:
        """The action for one observation; `(action, state_out, extra_fetches)` with memory, or if `state` is passed.

        Observation filter, `normalize_actions` and `clip_actions` are not applied here, but by
        `Trainer.compute_single_action` and the policy of `load_policy`.

        Args:
            state, prev_action, prev_reward: the `state_out`, action and reward of the previous step; None at the start
                of a trajectory.
        Raises:
            EnvError, NonFiniteError: the observation does not fit the observation space.
        """
        from rollax.policy.raw_observations import columns_for  # loaded only where it is used

        columns = columns_for(self, obs, one=True)
        prev_actions = None if prev_action is None else spaces.stack(self.action_space, [prev_action])
        states = None if state is None else [np.asarray(part)[None] for part in state]
        prev_rewards = None if prev_reward is None else np.array([prev_reward], np.float32)
        context = self.memory_of(1, states, prev_actions, prev_rewards)
        actions, state_outs, extra = call_accepted(self.compute_actions, columns, explore=explore, **context)
        action = actions[0] if isinstance(actions, list) else trees.index(trees.tree_map(np.asarray, actions), 0)
        action = trees.copied(action)  # the caller may write into it
        if state is None and not context["state_batches"]:
            return action
        return action, [part[0] for part in state_outs], {key: value[0] for key, value in extra.items()}

    def memory_of(
        self, rows: int, states: Sequence[Any] | None, prev_actions: Any, prev_rewards: Any
    ) -> dict[str, Any]:
        """The arguments of `compute_actions` about the previous steps of N rows; None: initial state, or zeros."""
        if states is None:
            states = [np.repeat(np.asarray(part)[None], rows, axis=0) for part in self.get_initial_state()]
        return {
            "state_batches": [np.asarray(part) for part in states],
            "prev_action_batch": spaces.zeros(self.action_space, rows) if prev_actions is None else prev_actions,
            "prev_reward_batch": np.zeros(rows, np.float32) if prev_rewards is None else prev_rewards,
        }

    def packed_acting(self) -> Any:
        """A `PackedActing`, which is faster than `compute_actions` for a sampler; None if the policy cannot use it."""
        return None

    def get_initial_state(self) -> list[Any]:
        """The recurrent state at the start of a trajectory; empty for a policy without memory."""
        return []

    def fetches_of(self, actions: Any, fetches: Mapping[str, Any]) -> Mapping[str, Any]:
        """The extra fetches that depend on the actions, for N actions that another policy has chosen.

        `fetches` are the extra fetches of the policy's own actions for the same observations.
        """
        return {}

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        """How the actions were drawn, for off-policy estimates: `action_logp`, `action_dist_inputs`; {} if unknown.

        Args:
            actions: what `compute_actions` returned.
            fetches: the extra fetches that `compute_actions` returned.
            explore: false for greedy actions, which have no probability.
        """
        names = (SampleBatch.ACTION_LOGP, SampleBatch.ACTION_DIST_INPUTS)
        return {name: fetches[name] for name in names if name in fetches} if explore else {}

    def prepare_rows(self, fragment: Fragment) -> None:  # noqa: B027  by default there is nothing to do
        """Updates running statistics from a sampled fragment, and changes its rewards, before columns are added.

        Args:
            fragment: N rows, with the columns of `sampled_columns`, and the row after each segment.
        """

    def postprocess_trajectory(
        self,
        sample_batch: Fragment,
        other_agent_batches: Mapping[Any, tuple[Policy, Fragment]] | None = None,
        episode: Any = None,
    ) -> SampleBatch:
        """Adds columns to one trajectory segment of one agent. An override costs a Python call per segment.

        An override may fill the column `critic_obs` and, unless the episode terminates,
        `sample_batch.after["critic_obs"]`: the critic's observations, if they differ from the actor's.

        Args:
            sample_batch: the rows of the segment in time order, with `agent_id`, `trajectory_id` and `t`;
                `sample_batch.following("obs")` are the next observations.
            other_agent_batches: agent id -> (policy, rows) of each other agent in the episode; the rows are one
                trajectory after another.
            episode: the episode.
        Returns:
            The batch with the columns of `postprocess_rows`, such as advantages.
        """
        return self.postprocess_rows(sample_batch)

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        """Adds columns to all trajectory segments of a fragment at once.

        Args:
            fragment: N rows, with the columns of `sampled_columns`, and the row after each segment.
        Returns:
            The rows with further columns [N, ...], such as `advantages`.
        """
        return fragment

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """Improves the policy.

        Args:
            batch: N rows that `postprocess_rows` returned, or that a replay buffer returns.
        Returns:
            Name -> number, in `info["learner"]` of the results. An entry `td_error` [N] is not in the results; with a
            replay buffer it becomes the priorities of the rows.
        Raises:
            PolicyError: the policy does not learn.
        """
        raise self._cannot("learn_on_batch")

    def compute_gradients(self, batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """`(gradients, statistics)` of a batch; `gradients` may be any value that `apply_gradients` accepts.

        Raises:
            PolicyError: the policy has no gradients.
        """
        raise self._cannot("compute_gradients")

    def apply_gradients(self, gradients: Any) -> None:
        """One optimizer step with what `compute_gradients` of this or an equal policy returned.

        Raises:
            PolicyError: the policy has no gradients.
        """
        raise self._cannot("apply_gradients")

    def get_weights(self) -> Weights:
        """Name -> array or plain number, as copies."""
        return {}

    def set_weights(self, weights: Weights) -> None:
        """Sets the weights that `get_weights` of an equal policy returned."""
        if weights:
            raise self._cannot("set_weights")

    def get_state(self) -> dict[str, Any]:
        """The state for a checkpoint: nested dicts of arrays, numbers, strings, lists and None.

        Networks, optimizer states and JAX arrays in attributes are included; CheckpointError is raised if they cannot
        be stored. NumPy arrays and counters in attributes are not: an override adds them.
        """
        state = {"weights": dict(self.get_weights()), "timestep": self.timestep, "acting": self.get_acting_state()}
        return {**state, "own": self._own_arrays()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` of an equal policy returned.

        Raises CheckpointError for a missing or wrong value, or attributes with other networks or arrays, and
        PolicyError for weights of another model.
        """
        where = f"policy {self.name!r}"
        timestep, acting = read_count(state, "timestep", where), read_dict(state, "acting", where)
        self._set_own_arrays(read_dict({"own": {}, **state}, "own", where))
        self.set_weights(read_value(state, "weights", where))
        self.timestep = timestep
        self.set_acting_state(acting)

    def get_acting_state(self) -> dict[str, Any]:
        """The part of the state that acting changes, such as its random numbers; part of `get_state`."""
        return {}

    def set_acting_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  by default there is none
        """Restores what `get_acting_state` of an equal policy returned, also in another process."""

    def _own_arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """The state in attributes, without the weights: attribute -> path in the attribute -> array."""
        from rollax.policy.own_state import own_arrays  # imports JAX; a policy in plain NumPy acts without it

        return own_arrays(self)

    def _set_own_arrays(self, arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        from rollax.policy.own_state import set_own_arrays  # as in `_own_arrays`

        set_own_arrays(self, arrays)

    def _cannot(self, method: str) -> PolicyError:
        return PolicyError(
            f"This policy does not implement {method}.",
            where=self.label,
            expected=f"a class that overrides {method}",
            fix=f"implement {method}, or leave the policy out of policies_to_train",
        )
