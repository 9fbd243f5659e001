"""Callbacks: methods of a user's class that are called while sampling and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.core.introspection import overrides
from rollax.errors import ConfigError

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.env.base_env import BaseEnv
    from rollax.rollout.episode import Episode
    from rollax.rollout.worker import RolloutWorker


class Callbacks:
    """Override the methods you need; only overridden methods are called.

    The config key `callbacks` is a class or a list of classes. A class need not be a subclass of this one, and may have
    only some of the methods. Other methods whose names begin with `on_` are refused, and so are methods with other
    parameters.
    """

    def on_episode_start(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """An episode has begun, and no agent has acted yet."""

    def on_episode_step(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """An episode has taken a step; `episode.last_infos` holds its infos."""

    def on_episode_end(self, *, worker: RolloutWorker, base_env: BaseEnv, episode: Episode) -> None:
        """An episode has ended; numbers put into `episode.custom_metrics` are averaged into the results."""

    def on_sample_end(self, *, worker: RolloutWorker, samples: SampleBatch | MultiAgentBatch) -> None:
        """A fragment is complete and postprocessed."""

    def on_train_result(self, *, trainer: Trainer, result: dict[str, Any]) -> None:
        """An iteration has ended; the callback may add keys to `result`."""

    def on_save(self, *, trainer: Trainer, state: dict[str, Any]) -> None:
        """The trainer collects its state, for example for a checkpoint; `state` is an empty dict.

        JSON values and arrays that the callback puts into `state` are stored with the trainer's state.
        """

    def on_restore(self, *, trainer: Trainer, state: Mapping[str, Any]) -> None:
        """The trainer has restored a state; `state` has what `on_save` stored when that state was collected."""


class SeveralCallbacks(Callbacks):
    """Callbacks that call the callbacks of several classes in turn; a subclass overrides the methods in `parts`.

    Args:
        instances: one of each class.
        parts: name of a method -> the instances whose class overrides it.
    """

    def __init__(self, instances: Sequence[Callbacks], parts: Mapping[str, Sequence[Callbacks]]) -> None:
        self.instances, self.parts = instances, parts


def states_of(callbacks: Callbacks, trainer: Trainer) -> list[dict[str, Any]]:
    """What `on_save` of each class has put into its own `state`, with the name of the class."""
    states = []
    for one in _instances(callbacks):
        state: dict[str, Any] = {}
        check_returned(one, "on_save", one.on_save(trainer=trainer, state=state), state)
        states.append({"class": type(one).__name__, "state": state})
    return states


def restore_states(callbacks: Callbacks, trainer: Trainer, stored: Sequence[Any] | Mapping[str, Any]) -> None:
    """Calls `on_restore` of each class with the state that `states_of` returned under its name; {} if there is none.

    The classes may differ from the classes of the saved trainer. A mapping, of an earlier version, is for all classes.
    """
    left = [] if isinstance(stored, Mapping) else list(stored)
    for one in _instances(callbacks):
        state = stored if isinstance(stored, Mapping) else {}
        index = next((index for index, each in enumerate(left) if each["class"] == type(one).__name__), None)
        if index is not None:
            state = left.pop(index)["state"]
        check_returned(one, "on_restore", one.on_restore(trainer=trainer, state=state), state)


def _instances(callbacks: Callbacks) -> Sequence[Callbacks]:
    return callbacks.instances if isinstance(callbacks, SeveralCallbacks) else [callbacks]


def check_returned(callbacks: Callbacks, method: str, returned: Any, given: Any) -> None:
    """Raises ConfigError unless the callback returned None, or the argument `given`, which it may change in place."""
    if returned is not None and returned is not given:
        raise ConfigError(
            "The value that a callback returns has no effect.",
            f"config key 'callbacks', class {type(callbacks).__name__}, method {method}",
            type(returned).__name__,
        ).expected(
            "None",
            "change the argument in place, as in `result['name'] = value`, `samples['rewards'] = values` or "
            "`episode.custom_metrics['name'] = number`, in a plain method without async and yield",
        )


def after_sample(
    callbacks: Callbacks, worker: RolloutWorker, samples: SampleBatch | MultiAgentBatch
) -> SampleBatch | MultiAgentBatch:
    """Calls `on_sample_end`, if it is overridden; returns the samples, which the callback may have changed."""
    if not overrides(type(callbacks), Callbacks, "on_sample_end"):
        return samples
    check_returned(callbacks, "on_sample_end", callbacks.on_sample_end(worker=worker, samples=samples), samples)
    if isinstance(samples, MultiAgentBatch):  # the callback may have replaced the rows of a policy
        return MultiAgentBatch(samples.policy_batches, samples.env_steps)
    return samples
