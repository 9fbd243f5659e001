"""From what a user names as an environment to a creator function of one `EnvContext`."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from rollax.env.context import EnvContext
from rollax.errors import ConfigError
from rollax.importing import REGISTERED, import_module, import_object

EnvCreator = Callable[[EnvContext], Any]
log = logging.getLogger("rollax.env")
_REGISTERED_BY_THEIR_PACKAGE = ("gymnasium.", "ale_py.")
_creators: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Makes `name` usable as an environment; a later registration of the same name replaces the earlier one.

    Args:
        name: what configs and the command line call it.
        creator: takes one `EnvContext`, returns an environment of any kind.
    """
    if not callable(creator):
        raise ConfigError(
            "A creator that cannot be called.",
            where=f"register_env({name!r})",
            got=creator,
            expected="a function of one EnvContext, or a class",
            fix="pass the class itself, or lambda context: MyEnv(context)",
        )
    _creators[name] = creator
    REGISTERED.add(name)


def registered_envs() -> list[str]:
    """The names registered in this process."""
    return sorted(_creators)


@dataclass(frozen=True, slots=True)
class Registrations:
    """What another process must know to make the same environments by name."""

    creators: Mapping[str, EnvCreator]
    specs: Mapping[str, Any]


def registrations(pickled: Callable[[Any], bytes]) -> Registrations:
    """What is registered here, and with Gymnasium by other packages than its own, as far as it can travel.

    Args:
        pickled: raises for what cannot travel.
    """
    specs = {}
    for env_id, spec in gym.registry.items():
        entry_point = spec.entry_point
        if not (isinstance(entry_point, str) and entry_point.startswith(_REGISTERED_BY_THEIR_PACKAGE)):
            specs[env_id] = spec
    return Registrations(_travelling(_creators, pickled), _travelling(specs, pickled))


def register_all(registered: Registrations) -> None:
    """Takes over what is registered in another process; what is known here already stays as it is."""
    for name, creator in registered.creators.items():
        _creators.setdefault(name, creator)
        REGISTERED.add(name)
    for env_id, spec in registered.specs.items():
        gym.registry.setdefault(env_id, spec)


def _travelling(entries: Mapping[str, Any], pickled: Callable[[Any], bytes]) -> dict[str, Any]:
    kept = {}
    for name, entry in entries.items():
        try:
            pickled(entry)
        except Exception as error:
            log.debug("%s does not travel to other processes: %s", name, error)
        else:
            kept[name] = entry
    return kept


def env_creator(env: Any) -> EnvCreator:
    """The creator of an environment given as an id, a registered name, `module:Class`, a class, or a function.

    Raises:
        ConfigError: an unknown id (the nearest ones are named), or a `module:Class` that does not import.
    """
    if isinstance(env, str):
        if env in _creators:
            return _creators[env]
        module, colon, name = env.partition(":")
        if colon:
            # Gymnasium too knows "module:id": importing the module registers the id.
            import_module(module, env, f"env={env!r}")
            return _from_id(name) if name in gym.registry else env_creator(import_object(env, f"env={env!r}"))
        return _from_id(env)
    if inspect.isclass(env) or callable(env):
        return env
    raise ConfigError(
        "Nothing that an environment can be made from.",
        where="env",
        got=env,
        expected="a Gymnasium id, a registered name, 'module:Class', a class taking env_config, or a creator function",
        fix="pass one of those; wrap an instance in a function of one EnvContext",
    )


def _from_id(env_id: str) -> EnvCreator:
    if env_id.startswith("pettingzoo/"):
        # Only now, as with Atari.
        from rollax.env.multi_agent.pettingzoo_names import pettingzoo_creator

        return pettingzoo_creator(env_id)
    import_atari_if_named(env_id)
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        known = [*_creators, *gym.registry]
        near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
        raise ConfigError(
            "An unknown environment.",
            where="env",
            got=f"{env_id!r} ({error})",
            expected=f"an id such as {', '.join(map(repr, near))}" if near else "a Gymnasium id or a registered name",
            fix="correct the name, install the package that brings it, or call register_env(name, creator), "
            "on the command line in a module that --import names",
        ) from error
    if env_id.startswith("ALE/"):
        from rollax.env.atari import AtariCreator

        return AtariCreator(env_id)
    return _IdCreator(env_id)


class _IdCreator:
    """Makes what a Gymnasium id names; `env_config` are keywords of `gymnasium.make`.

    Args:
        env_id: the id.
    """

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def __call__(self, context: EnvContext) -> gym.Env:
        # rollax checks what environments return by itself, so Gymnasium's checker would only cost a call per step.
        return gym.make(self.env_id, **{"disable_env_checker": True, **context})

    @property
    def entry_point(self) -> Callable[..., Any]:
        """The class or function that makes the environment."""
        found: Any = gym.spec(self.env_id).entry_point
        return found if callable(found) else load_env_creator(found)


def import_atari_if_named(env_id: str) -> None:
    """Registers ale-py's ids where one of them is asked for.

    Raises:
        ConfigError: ale-py is not installed.
    """
    if env_id.startswith("ALE/"):
        # Only now: who plays no Atari need not load it.
        from rollax.env.atari import register_games

        register_games()
