"""Callbacks: methods of a user's class that are called while sampling and training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollax.batch import MultiAgentBatch, SampleBatch
from rollax.core.introspection import overrides
from rollax.errors import ConfigError, corrected

if TYPE_CHECKING:
    from rollax.algorithms.trainer import Trainer
    from rollax.env.base_env import BaseEnv
    from rollax.rollout.episodes import Episode
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
        """The trainer's state is read, as for a checkpoint, which also stores JSON values and arrays in `state`."""

    def on_restore(self, *, trainer: Trainer, state: Mapping[str, Any]) -> None:
        """A state of the trainer is set; `state` is what `on_save` put into it, empty if nothing."""


_HOOKS = {name: inspect.signature(hook) for name, hook in vars(Callbacks).items() if name.startswith("on_")}
_OTHER_NAMES = {
    "on_episode_start": ("on_episode_begin", "on_episode_created", "on_reset", "on_env_reset"),
    "on_episode_step": ("on_step", "on_env_step"),
    "on_episode_end": ("on_episode_finish", "on_episode_finished", "on_episode_done"),
    "on_sample_end": ("on_rollout_end", "on_postprocess_trajectory", "on_learn_on_batch"),
    "on_save": ("on_checkpoint", "on_checkpoint_saved", "on_save_checkpoint"),
    "on_restore": ("on_checkpoint_loaded", "on_load", "on_load_checkpoint"),
    "on_train_result": ("on_train_end", "on_train_step", "on_training_end", "on_iteration_end", "on_result"),
}


class _Several(Callbacks):
    """Callbacks that call the callbacks of several classes in turn; a subclass overrides the methods in `parts`.

    Args:
        parts: name of a method -> the callbacks that override it.
    """

    def __init__(self, parts: Mapping[str, Sequence[Callbacks]]) -> None:
        self.parts = parts


def make_callbacks(given: Any) -> Callbacks:
    """An instance of the config's class; for a list, callbacks that call its classes in turn; for None, no callbacks.

    Raises:
        ConfigError: a method `on_...` is never called, or cannot take the arguments of its calls.
    """
    if given is None:
        return Callbacks()
    if isinstance(given, list | tuple):
        made = [make_callbacks(one) for one in given]
        parts = {name: [part for part in made if overrides(type(part), Callbacks, name)] for name in _HOOKS}
        return type("CallbackList", (_Several,), {name: _call_each(name) for name in parts if parts[name]})(parts)
    if isinstance(given, type) and not issubclass(given, Callbacks):
        given = type(given.__name__, (given, Callbacks), {})
    where = f"config key 'callbacks', class {getattr(given, '__name__', given)}"
    if isinstance(given, type):
        _check_call(given, (), f"{given.__name__}()", where, "give its parameters defaults, or leave them out")
    callbacks = given()
    for name in dir(type(callbacks)):
        if name.startswith("on_") and (name in _HOOKS or callable(getattr(callbacks, name))):
            _check_hook(callbacks, name, f"{where}, method {name}")
    return callbacks


def _call_each(name: str) -> Callable[..., None]:
    """A method that calls the method of this name of each part that overrides it."""
    changed = list(_HOOKS[name].parameters)[-1]

    def method(self: _Several, **arguments: Any) -> None:
        for part in self.parts[name]:
            check_returned(part, name, getattr(part, name)(**arguments), arguments[changed])

    return method


def _check_hook(callbacks: Callbacks, name: str, where: str) -> None:
    hook = _HOOKS.get(name)
    if hook is None:
        known = [hook for hook, others in _OTHER_NAMES.items() if name in others]
        near = next(iter(known), None) or corrected(name, _HOOKS)
        raise ConfigError("The callback is never called: its name is unknown.", where, name).expected(
            ", ".join(_HOOKS),
            f"rename it to {near or 'one of these'}; names of your own methods must not begin with on_",
        )
    named = tuple(parameter for parameter in hook.parameters if parameter != "self")
    expected = f"def {name}(self, *, {', '.join(named)})"
    _check_call(getattr(callbacks, name), named, expected, where, "take these parameters by their names, or **kwargs")


def _check_call(function: Any, named: tuple[str, ...], expected: str, where: str, fix: str) -> None:
    """Refuses a function that does not take these keywords."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # no signature, as in some functions of C
        return
    except TypeError:  # not a function
        raise ConfigError("The callback is not callable.", where=where, got=function, expected=expected) from None
    try:
        signature.bind(**dict.fromkeys(named))
    except TypeError as error:
        got = f"parameters {signature}: {error}"
        what = "A callback does not accept the arguments of its call."
        raise ConfigError(what, where=where, got=got, expected=expected, fix=fix) from None


def check_returned(callbacks: Callbacks, method: str, returned: Any, given: Any) -> None:
    """Raises ConfigError for a returned value other than the argument `given`, which may be changed in place."""
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
