"""Registered environments, and the creator of an environment given by name, path, class or function."""

from __future__ import annotations

import difflib
import inspect
import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from rollax.core.frozen import thawed
from rollax.core.importing import JAX_ENV, REGISTERED, ImportPath, StoredCode, import_module, import_object
from rollax.env.adapters import register_env_adapter, registered_adapters
from rollax.errors import ConfigError

log = logging.getLogger("rollax.env")
_REGISTERED_BY_THEIR_PACKAGE = ("gymnasium.", "ale_py.")
_OLD_ATARI = re.compile(r"(\w+?)(?:NoFrameskip|Deterministic)-v[04]")
_CREATORS_BY_PREFIX = {
    "ALE/": "rollax.env.atari:AtariCreator",
    JAX_ENV: "rollax.env.jax.names:JaxCreator",
    "pettingzoo/": "rollax.env.multi_agent.pettingzoo_env:pettingzoo_creator",
}


class EnvContext(dict[str, Any]):
    """The dict `env_config`, with the worker and the copy that the environment is made for.

    Args:
        env_config: the user's settings; their dicts and lists are copied.
        worker_index: 0 for the driver's own worker, else 1 to `num_workers`.
        vector_index: index of the copy within the worker.
        num_workers: the number of remote workers.
        remote: the environment runs in its own actor.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool = False,
    ) -> None:
        super().__init__(thawed(dict(env_config or {})))
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote

    def at(self, vector_index: int) -> EnvContext:
        """Returns the same context for another copy."""
        return EnvContext(
            self,
            worker_index=self.worker_index,
            vector_index=vector_index,
            num_workers=self.num_workers,
            remote=self.remote,
        )


EnvCreator = Callable[[EnvContext], Any]
_creators: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Makes `name` usable as an environment; a later registration of the same name replaces the earlier one.

    Args:
        name: its name in configs and on the command line.
        creator: takes one `EnvContext`, returns an environment of any kind.
    """
    if not callable(creator):
        raise ConfigError("The creator is not callable.", f"register_env({name!r})", creator).expected(
            "a function of one EnvContext, or a class", "pass the class itself, or lambda context: MyEnv(context)"
        )
    _creators[name] = creator
    REGISTERED.add(name)


def registered_envs() -> list[str]:
    """The names registered in this process."""
    return sorted(_creators)


@dataclass(frozen=True, slots=True)
class Registrations:
    """Registrations that another process may need to make the same environments, each pickled on its own.

    Unpickling runs code: they travel only from a driver to the processes that it starts with Ray, as their classes and
    functions do, and are read neither from files nor from requests.
    """

    creators: Mapping[str, bytes]
    specs: Mapping[str, bytes]
    adapters: Mapping[str, bytes]


def registrations(pickled: Callable[[Any], bytes]) -> Registrations:
    """Registrations of users in this process, with rollax or with Gymnasium, that `pickled` accepts."""
    specs = {}
    for env_id, spec in gym.registry.items():
        entry_point = spec.entry_point
        if not (isinstance(entry_point, str) and entry_point.startswith(_REGISTERED_BY_THEIR_PACKAGE)):
            specs[env_id] = spec
    return Registrations(*(_pickled(entries, pickled) for entries in (_creators, specs, registered_adapters())))


def register_all(registered: Registrations) -> None:
    """Adds the registrations of another process; entries of this process are not changed.

    Those that need a module that is not installed here are left out: few processes need all registrations.
    """
    for name, creator in _unpickled(registered.creators, _creators):
        _creators[name] = creator
        REGISTERED.add(name)
    for env_id, spec in _unpickled(registered.specs, gym.registry):
        gym.registry[env_id] = spec
    for kind, adapter in _unpickled(registered.adapters, registered_adapters()):
        register_env_adapter(kind, adapter.adapter, adapter.recognizes)


def _pickled(entries: Mapping[str, Any], pickled: Callable[[Any], bytes]) -> dict[str, bytes]:
    kept = {}
    for name, entry in entries.items():
        try:
            kept[name] = pickled(entry)
        except Exception as error:
            log.debug("%s cannot be pickled and is unknown in other processes: %s", name, error)
    return kept


def _unpickled(entries: Mapping[str, bytes], existing: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, entry in entries.items():
        if name in existing:
            continue
        try:
            yield name, pickle.loads(entry)  # noqa: S301 (from the process that started this one)
        except Exception as error:
            log.debug("%s cannot be loaded and is unknown in this process: %s", name, error)


def env_creator(env: Any) -> EnvCreator:
    """The creator of an environment given as an id, a registered name, `module:Class`, a class, or a function.

    Raises:
        ConfigError: an unknown id (the error suggests the nearest ones), a `module:Class` that does not import, or one
            in a plain string, no `ImportPath`: `named_by_caller` makes one from an argument of the caller.
    """
    if isinstance(env, str):
        if env in _creators:
            return _creators[env]
        _, colon, name = env.partition(":")
        if colon and not env.startswith(tuple(_CREATORS_BY_PREFIX)):
            # Gymnasium's form "module:id": importing the module registers the id.
            import_module(env, f"env={env!r}")
            return _from_id(name) if name in gym.registry else env_creator(import_object(env, f"env={env!r}"))
        return _from_id(env)
    if inspect.isclass(env) or callable(env):
        return env
    fix = "pass one of those"
    if hasattr(env, "step") and hasattr(env, "reset"):
        fix = f"pass what creates it, env=lambda context: {type(env).__name__}(...): each worker creates its own copies"
    raise ConfigError("The value is neither an environment nor a creator.", "env", env).expected(
        "a Gymnasium id, a registered name, 'module:Class', a class taking env_config, or a creator function", fix
    )


def _from_id(env_id: str) -> EnvCreator:
    import_atari_if_named(env_id)
    for prefix, creator in _CREATORS_BY_PREFIX.items():
        if env_id.startswith(prefix) and (prefix != "ALE/" or env_id in gym.registry):
            return import_object(ImportPath(creator), f"env={env_id!r}")(env_id)
    env_id = id_without_module(env_id, f"env={env_id!r}")
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        known = [*_creators, *gym.registry]
        near = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
        raise ConfigError("Unknown environment.", "env", f"{env_id!r} ({error})").expected(
            f"an id such as {', '.join(map(repr, near))}" if near else "a Gymnasium id or a registered name",
            _fix_of_unknown(env_id),
        ) from error
    return _IdCreator(env_id)


def id_without_module(env_id: Any, where: str) -> str:
    """The id in Gymnasium's registry of an id or "module:id", whose module is imported here, if the caller wrote it.

    Gymnasium itself would import any module: `gymnasium.make` and `gymnasium.spec` only get what this function returns.
    """
    if isinstance(env_id, StoredCode):
        raise env_id.error()
    if not isinstance(env_id, str):
        raise ConfigError("This is not the id of an environment.", where=where, got=env_id, expected="a Gymnasium id")
    if ":" in env_id:
        import_module(env_id, where)
    return env_id.rpartition(":")[2]


def _fix_of_unknown(env_id: str) -> str:
    if game := _OLD_ATARI.fullmatch(env_id):
        return f"write 'ALE/{game[1]}-v5', which is preprocessed; see docs/atari-and-video.md"
    module, dot, name = env_id.rpartition(".")
    if dot and all(part.isidentifier() for part in env_id.split(".")):
        return f"write '{module}:{name}' for a class in a module, or correct the name"
    return (
        "correct the name, install the package that registers it, or call register_env(name, creator), on the command "
        "line in a module that --import names"
    )


class _IdCreator:
    """Makes the environment of a Gymnasium id; `env_config` holds keywords of `gymnasium.make`."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def __call__(self, context: EnvContext) -> gym.Env:
        # rollax checks the results of environments, so Gymnasium's checker would only cost a call per step.
        return gym.make(self.env_id, **{"disable_env_checker": True, **context})

    @property
    def entry_point(self) -> Callable[..., Any]:
        """The class or function that makes the environment."""
        found: Any = gym.spec(self.env_id).entry_point
        return found if callable(found) else load_env_creator(found)


def import_atari_if_named(env_id: str) -> None:
    """Registers ale-py's ids, if `env_id` is one of them; `ConfigError` if ale-py is not installed."""
    if env_id.startswith("ALE/"):
        import_object(ImportPath("rollax.env.atari:register_games"), f"env={env_id!r}")()
