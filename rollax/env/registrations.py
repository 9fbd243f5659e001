"""Registrations of environments in this process, for the processes that it starts."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rollax.env.adapters import register_env_adapter, registered_adapters
from rollax.env.registry import register_env, registered_creators

log = logging.getLogger("rollax.env")
_REGISTERED_BY_THEIR_PACKAGE = ("gymnasium.", "ale_py.")


@dataclass(frozen=True, slots=True)
class Registrations:
    """Registrations that another process may need to make the same environments, each pickled on its own.

    Unpickling runs code: registrations are sent only from a driver to the processes that it starts, and are never read
    from files or requests.
    """

    creators: Mapping[str, bytes]
    specs: Mapping[str, bytes]
    adapters: Mapping[str, bytes]


def registrations(pickled: Callable[[Any], bytes]) -> Registrations:
    """The registrations of this process that `pickled` accepts; ids of Gymnasium and ale-py are left out."""
    specs = {}
    for env_id, spec in gym.registry.items():
        entry_point = spec.entry_point
        if not (isinstance(entry_point, str) and entry_point.startswith(_REGISTERED_BY_THEIR_PACKAGE)):
            specs[env_id] = spec
    return Registrations(
        *(_pickled(entries, pickled) for entries in (registered_creators(), specs, registered_adapters()))
    )


def register_all(registered: Registrations) -> None:
    """Adds the registrations of another process; entries of this process are not changed.

    Entries that need a module that is not installed here are left out: few processes need all registrations.
    """
    for name, creator in _unpickled(registered.creators, registered_creators()):
        register_env(name, creator)
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
