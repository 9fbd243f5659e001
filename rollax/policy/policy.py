"""`Policy`: NumPy in, NumPy out. A user can write one from scratch; only `compute_actions` is abstract."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import Space

from rollax import spaces, trees
from rollax.batch import Fragment, SampleBatch
from rollax.errors import PolicyError
from rollax.policy.raw_observations import columns_of_one
from rollax.spaces import space_text
from rollax.state import count, entry, section

Weights = Mapping[str, Any]
ActionsResult = tuple[Any, Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ReplayedSequences:
    """That a policy learns from sequences of what a replay buffer keeps, and which; see `sample_sequences` there.

    Args:
        length: T, rows of each to learn from.
        burn_in: rows before those.
        columns: what the buffer keeps for it beside observations, actions and rewards.
    """

    length: int
    burn_in: int = 0
    columns: tuple[str, ...] = ()


class Policy(ABC):
    """Chooses actions for batches of observations, and may learn from batches of experience.

    The library passes `compute_actions` by keyword what it accepts, so a policy may take fewer arguments; episodes,
    infos and previous actions are built only where they are taken. Actions and states may be lists or arrays, weights
    may be plain numbers.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        config: the algorithm's config, or a dict of a user's own.
    """

    batch_columns: ClassVar[frozenset[str] | None] = None
    """The columns that postprocessing and learning read; others are not filled. None: all but `infos`, `prev_actions`
    and `prev_rewards`, which are filled only where they are named."""

    config_class: ClassVar[Any] = None
    """The config class that a plain dict is checked against where there is no trainer; None: the common one."""

    arguments: frozenset[str] | None = None
    """The arguments of `compute_actions` to fill; None: all that it takes."""

    sees_all_agents: bool = False
    """Whether the column `critic_obs` is filled with what all agents observe and do; see `JointRows`."""

    learns_off_policy: ClassVar[bool] = False
    """Whether it can learn from actions that somebody else has chosen."""

    minibatch_size: int | None = None
    """Rows of one update from a replay buffer, if one call of `learn_on_batch` makes several; None: one call for each.
    """

    worker_index: int = 0
    """The rollout worker that the policy acts in: from 1 to `num_workers`, 0 in the driver's process."""

    num_workers: int = 0
    """The number of remote rollout workers."""

    replayed: ReplayedSequences | None = None
    """What it learns from where experience is replayed: sequences, or, where this is None, single rows."""

    statistics: tuple[str, ...] = ()
    """What `learn_on_batch` tells of every update, by name: results tell `None` of each before the first one."""

    stored_apart: ClassVar[frozenset[str]] = frozenset()
    """Attributes with networks or JAX arrays that `get_state` stores in a way of its own; those that a base class names
    are among them in any case. All others are stored without further ado; see `own_arrays`."""

    name: str = "default_policy"
    """The policy id; whoever holds several policies sets it."""

    def __init__(self, observation_space: Space, action_space: Space, config: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.config: Any = {} if config is None else config
        self.timestep = 0

    def __repr__(self) -> str:
        spaces = f"{space_text(self.observation_space)} -> {space_text(self.action_space)}"
        return f"{type(self).__name__}({self.name!r}, {spaces})"

    @property
    def sampled_columns(self) -> frozenset[str] | None:
        """The columns that sampling fills for this policy: `batch_columns`, unless its config or model says more."""
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
            state_batches: recurrent state, each [N, ...].
            prev_action_batch: columns of the N actions before these; zeros at the start of a trajectory.
            prev_reward_batch: [N] the rewards before these; zeros at the start of a trajectory.
            info_batch: N info dicts.
            episodes: N running episodes.
            explore: False for the greedy action.
            timestep: environment steps trained on so far.
        Returns:
            `(actions, state_outs, extra_fetches)`: columns of N actions, the next recurrent state, and further
            columns [N, ...] to store with the rows.
        """

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[Any] | None = None,
        explore: bool = False,
        prev_action: Any = None,
        prev_reward: float = 0.0,
    ) -> Any:
        """The action for one observation; `(action, state_out, extra_fetches)` of a policy with memory.

        Observation and action are the policy's own: `Trainer.compute_single_action` and that of `load_policy` take
        those of the environment, with `observation_filter`, `normalize_actions` and `clip_actions` in between.

        Args:
            obs: one observation, as the observation filter leaves it.
            state: the `state_out` of the step before; None at the start of a trajectory.
            explore: False for the greedy action.
            prev_action: the action before; None at the start of a trajectory.
            prev_reward: the reward that followed it.
        Raises:
            EnvError, NonFiniteError: an observation that is none of the observation space.
        """
        columns = columns_of_one(self.observation_space, obs, f"an observation for policy {self.name!r}")
        prev_actions = None if prev_action is None else spaces.stack(self.action_space, [prev_action])
        states = None if state is None else [np.asarray(part)[None] for part in state]
        context = self.memory_of(1, states, prev_actions, np.array([prev_reward], np.float32))
        actions, state_outs, extra = call_accepted(self.compute_actions, columns, explore=explore, **context)
        action = actions[0] if isinstance(actions, list) else trees.index(trees.tree_map(np.asarray, actions), 0)
        if state is None and not context["state_batches"]:
            return action
        return action, [part[0] for part in state_outs], {key: value[0] for key, value in extra.items()}

    def memory_of(
        self, rows: int, states: Sequence[Any] | None, prev_actions: Any, prev_rewards: Any
    ) -> dict[str, Any]:
        """The arguments of `compute_actions` that tell what came before N observations.

        Args:
            rows: N.
            states: the recurrent state, each part [N, ...]; None for the initial one.
            prev_actions: columns of the N actions before; None where there are none.
            prev_rewards: [N] what followed them; None where there are none.
        """
        if states is None:
            states = [np.repeat(np.asarray(part)[None], rows, axis=0) for part in self.get_initial_state()]
        return {
            "state_batches": [np.asarray(part) for part in states],
            "prev_action_batch": spaces.zeros(self.action_space, rows) if prev_actions is None else prev_actions,
            "prev_reward_batch": np.zeros(rows, np.float32) if prev_rewards is None else prev_rewards,
        }

    def get_initial_state(self) -> list[Any]:
        """The recurrent state at the start of a trajectory; empty for a policy without memory."""
        return []

    def fetches_of(self, actions: Any, fetches: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the extra fetches that depend on the actions, for actions that were not its own.

        Args:
            actions: columns of N actions, as `compute_actions` returns them.
            fetches: what came with the policy's own actions for the same observations.
        """
        return {}

    def postprocess_trajectory(
        self,
        sample_batch: Fragment,
        other_agent_batches: Mapping[Any, tuple[Policy, Fragment]] | None = None,
        episode: Any = None,
    ) -> SampleBatch:
        """Adds columns to one trajectory segment of one agent. Overriding it costs a Python call per segment.

        A critic that sees something else than the actor reads it from the column `critic_obs`, which may be filled
        here, and from `sample_batch.after["critic_obs"]` after the last row, where the episode does not end there.

        Args:
            sample_batch: the rows of one agent's trajectory, in time order, as far as they have been sampled;
                `agent_id`, `trajectory_id` and `t` are among its columns. `sample_batch.following("obs")` are the next
                observations.
            other_agent_batches: the other agents of the episode: agent id -> (its policy, its rows, one trajectory
                after another where it has ended and come back).
            episode: the episode.
        Returns:
            The batch with what `postprocess_rows` adds, unless overridden: advantages for instance, which an override
            gets by calling this one, with its own rows or another agent's.
        """
        return self.postprocess_rows(sample_batch)

    def postprocess_rows(self, fragment: Fragment) -> SampleBatch:
        """Adds columns to all trajectory segments of a fragment at once."""
        return fragment

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """Improves the policy; returns its own statistics."""
        raise self._cannot("learn_on_batch")

    def compute_gradients(self, batch: SampleBatch) -> tuple[Any, dict[str, Any]]:
        """`(gradients, statistics)` of one batch, to be applied here or elsewhere."""
        raise self._cannot("compute_gradients")

    def apply_gradients(self, gradients: Any) -> None:
        """One optimizer step."""
        raise self._cannot("apply_gradients")

    def get_weights(self) -> Weights:
        """Name -> array or plain number; nothing that is read from here changes later."""
        return {}

    def set_weights(self, weights: Weights) -> None:
        """Takes over what `get_weights` of an equal policy returned."""
        if weights:
            raise self._cannot("set_weights")

    def get_state(self) -> dict[str, Any]:
        """All that a checkpoint must hold: nested dicts of arrays, numbers, strings, lists and None.

        Among it is what attributes hold of networks, optimizer states and JAX arrays; NumPy arrays, counters and the
        like are added by an override, which calls this one.

        Raises:
            CheckpointError: an attribute is an object with such a thing inside of it, which would be lost.
        """
        state = {"weights": dict(self.get_weights()), "timestep": self.timestep, "acting": self.get_acting_state()}
        return {**state, "own": _own_state().own_arrays(self)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of an equal policy returned.

        Raises:
            CheckpointError: a value is missing or wrong, or its attributes hold other networks or arrays.
        """
        where = f"policy {self.name!r}"
        timestep, acting = count(state, "timestep", where), section(state, "acting", where)
        _own_state().set_own_arrays(self, section({"own": {}, **state}, "own", where))
        self.set_weights(entry(state, "weights", where))
        self.timestep = timestep
        self.set_acting_state(acting)

    def get_acting_state(self) -> dict[str, Any]:
        """What acting alone advances, such as its random numbers; part of `get_state`."""
        return {}

    def set_acting_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  by default there is none
        """Takes over what `get_acting_state` of an equal policy returned, here or in another process."""

    def _cannot(self, method: str) -> PolicyError:
        return PolicyError(
            f"This policy does not implement {method}.",
            where=f"policy {self.name!r}, class {type(self).__name__}",
            expected=f"{method} overridden",
            fix=f"implement {method}, or leave the policy out of policies_to_train",
        )


def _own_state() -> Any:
    # Only now: a policy in plain NumPy acts without JAX.
    from rollax.policy import own_state

    return own_state


def accepted(function: Any) -> frozenset[str] | None:
    """The names of the keyword arguments that a function takes; None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def call_accepted(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls with those keyword arguments that the function takes."""
    names = accepted(function)
    return function(*args, **{key: value for key, value in kwargs.items() if names is None or key in names})
