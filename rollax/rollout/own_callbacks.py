"""Callbacks of the user's classes, whose methods are checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rollax.core.introspection import overrides
from rollax.errors import ConfigError, corrected
from rollax.rollout.callbacks import Callbacks, SeveralCallbacks, check_returned

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


def make_callbacks(given: Any) -> Callbacks:
    """An instance of the config's class; for a list, callbacks that call its classes in turn.

    Raises:
        ConfigError: a method `on_...` is never called, or cannot take the arguments of its calls.
    """
    if isinstance(given, list | tuple):
        made = [make_callbacks(one) for one in given]
        parts = {name: [part for part in made if overrides(type(part), Callbacks, name)] for name in _HOOKS}
        several = type("CallbackList", (SeveralCallbacks,), {name: _call_each(name) for name in parts if parts[name]})
        return several(made, parts)
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
    """Returns a method that calls the method `name` of each part that overrides it."""
    changed = list(_HOOKS[name].parameters)[-1]

    def method(self: SeveralCallbacks, **arguments: Any) -> None:
        for index in range(len(self.parts[name])):
            # An earlier part may have added a policy, so that the trainer has made its callbacks again.
            callbacks: Any = arguments["trainer"].worker.callbacks if name == "on_train_result" else self
            part = callbacks.parts[name][index]
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
