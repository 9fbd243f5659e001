"""`ReplayOptimizer`: the base of optimizers with replay: buffers, due updates, and checks.

`UpdatesDue`: the number of updates that stored steps have made due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rollax.core.stored_values import generator_state, read_count, read_dict, read_number
from rollax.env.stacking import stack_axis
from rollax.errors import ConfigError, PolicyError
from rollax.optimizers.exact import inexact
from rollax.optimizers.optimizer import OWN_TRAINER, Optimizer
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.policy import Policy
from rollax.policy.sequence_draw import SequenceDraw
from rollax.replay.frames import StackedFrames
from rollax.replay.prioritized import PrioritizedReplay
from rollax.replay.uniform import UniformReplay

OTHER_KIND = "The stored rows are lost, and the replay buffer begins empty, because it is now %s."
"""The warning about the stored rows of a buffer on the device, for a run with a buffer on the host, or vice versa."""
_ROUNDING = 1e-6
"""Tolerance, in updates: in float64, 100 * 0.29 is slightly less than 29."""


@dataclass
class UpdatesDue:
    """Each stored step after the first `learning_starts` makes `training_intensity` updates due.

    Due updates stay due; a change of the settings affects later steps only.
    """

    learning_starts: int
    training_intensity: float
    stored: int = field(init=False)  # steps so far
    before: float = field(init=False)  # updates due when `since` steps were stored
    since: int = field(init=False)  # each stored step after this number of steps makes further updates due

    def __post_init__(self) -> None:
        self.begin(0)

    @property
    def updates(self) -> int:
        """All updates due since the run began, including those already made."""
        return int(self._exactly(self.training_intensity) + _ROUNDING)

    def begin(self, made: int, *, stored: int = 0) -> None:
        """Begins again with `stored` steps: nothing is due beyond the updates already made."""
        self.stored, self.before, self.since = stored, float(made), max(stored, self.learning_starts)

    def add(self, steps: int) -> None:
        self.stored += steps

    def skip(self, made: int) -> None:
        """Skips the due updates that are not made, because nothing can be drawn."""
        self.begin(made, stored=self.stored)

    def get_state(self) -> dict[str, Any]:
        return asdict(self)

    def restored(self, state: Mapping[str, Any], *, made: int, kept: bool, most_steps: int) -> UpdatesDue:
        """With the settings of this object, the counts of the object that returned `state` and made `made` updates.

        The settings of that object may differ. Unless the stored rows are `kept`, `learning_starts` counts from here.
        Raises CheckpointError for an invalid state.

        Updates for at most `most_steps` steps, the size of the buffer, stay due: a damaged count cannot make the
        optimizer's step endless.
        """
        due = UpdatesDue(self.learning_starts, self.training_intensity)
        if not kept:
            due.begin(made)
            return due
        where = "updates due"
        stored, since, starts = (read_count(state, key, where) for key in ("stored", "since", "learning_starts"))
        before, intensity = read_number(state, "before", where), read_number(state, "training_intensity", where)
        due.stored, due.before, due.since = stored, before, since
        if (starts, intensity) != (due.learning_starts, due.training_intensity):
            due.before, due.since = due._exactly(intensity), max(stored, due.learning_starts)
        if due.updates - made > (most := math.ceil(most_steps * due.training_intensity)):
            due.begin(made + most, stored=stored)
        return due

    def _exactly(self, training_intensity: float) -> float:
        # A product: rounding errors of a running sum of fractions would add up.
        return self.before + max(self.stored - self.since, 0) * training_intensity


class ReplayOptimizer(Optimizer):
    """Learns from draws of replay buffers, one for each policy to train.

    Each step stored after the first `learning_starts` makes exactly `training_intensity` updates due; see `UpdatesDue`.
    Steps make no updates due while nothing can be drawn.

    Without `store_buffer_in_checkpoints` a restored run begins with empty buffers, and waits for `learning_starts`
    steps again.

    Attributes:
        draws: policy id -> how its experience is drawn.
    """

    def _set_up(self) -> None:
        super()._set_up()
        self.num_updates = 0
        self.draws = {policy_id: policy.replayed.in_run(policy.config) for policy_id, policy in self.policies.items()}
        self._due = UpdatesDue(self.config.learning_starts, self.config.training_intensity)

    def buffers_of(self, policy: Policy, *columns: str) -> partial[Any]:
        """Returns a function from a capacity to a replay buffer of the policy.

        `columns` are stored in addition to the columns that the policy requires. An override may return another class.

        Raises:
            PolicyError: the policy's config has no `n_step`, or the model has memory and the policy learns from single
                rows.
            ConfigError: the policy's observations are not stacked along `frame_stack_axis`.
        """
        config = self.config
        if not hasattr(policy.config, "n_step"):
            raise PolicyError(
                "A policy to train cannot learn from replayed experience.",
                f"{policy.label}, config key 'multiagent.policies_to_train'",
                f"a {type(policy.config).__name__}, which has no 'n_step'",
            ).expected("a policy whose config has the keys of replay, such as one of DQN, SAC or TD3", OWN_TRAINER)
        learns_rows = not isinstance(policy.replayed, SequenceDraw)
        if isinstance(policy, ModelPolicy) and policy.memory.present and learns_rows:
            raise PolicyError(
                "The model has memory, but the policy learns from single replayed rows.", policy.label, "memory"
            ).expected(
                "no memory, or a policy whose `replayed` is a SequenceDraw, such as DQN's",
                "use such a model, or SyncSamplesOptimizer",
            )
        settings: dict[str, Any] = {
            "gamma": policy.config.gamma,
            "n_step": policy.config.n_step,
            "where": f"replay buffer of policy {policy.name!r}",
            "columns": (*columns, *policy.replayed_columns, *policy.replayed.columns),
            "frames": _stacked_frames(policy, config),
        }
        if not config.prioritized_replay:
            return partial(UniformReplay, **settings)
        alpha, eps = config.prioritized_replay_alpha, config.prioritized_replay_eps
        return partial(PrioritizedReplay, alpha=alpha, eps=eps, **settings)

    def _restored_due(self, state: Mapping[str, Any], num_updates: int, *, kept: bool) -> UpdatesDue:
        """The due updates of a state from `get_state`, after `num_updates` updates; `kept`: it has the stored rows."""
        due = read_dict(state, "due", "optimizer")
        return self._due.restored(due, made=num_updates, kept=kept, most_steps=self.config.buffer_size)

    def rows_of_update(self, policy: Policy) -> int:
        """Rows of one update: the policy's own number if it has one, else `train_batch_size`."""
        return policy.minibatch_size or self.config.train_batch_size

    def begin_exactly(self) -> None:
        super().begin_exactly()
        if not self.config.store_buffer_in_checkpoints:
            raise inexact(
                got="store_buffer_in_checkpoints=False: a restored run begins with empty buffers",
                expected="store_buffer_in_checkpoints=True",
            )


def _stacked_frames(policy: Policy, config: Any) -> StackedFrames | None:
    """How images are stacked, by `frame_stack_axis` or else `frame_stack`; None if observations are stored whole."""
    shape, axis = policy.observation_space.shape, config.frame_stack_axis
    if axis is None:
        count = config.frame_stack
        # The filter changes, and with it the images that two stacks have in common.
        if count == 1 or policy.config.observation_filter != "NoFilter":
            return None
        axis = stack_axis(policy.observation_space, count)
        return None if axis is None or shape is None else StackedFrames(count, axis, shape[axis] // count)
    if not shape or not -len(shape) <= axis < len(shape):
        raise ConfigError(
            "The observations are not stacks of images along this axis.",
            "config key 'frame_stack_axis'",
            f"{axis}, for {policy.observation_space}",
        ).expected("an axis of a Box", "leave it out for observations that are not stacked")
    return StackedFrames(shape[axis], axis)


def random_state(state: Mapping[str, Any], key: str, others: str, generator: np.random.Generator) -> Any:
    """The stored state of a generator; its current state if `state` has the key `others` instead.

    Optimizers with shards (`choices`) and with buffers (`rng`) restore each other's states, when a run changes from
    recorded data alone to an environment, or back.
    """
    if others in state and key not in state:
        return generator.bit_generator.state
    return generator_state(state, key, "optimizer", generator)
