"""The extensions of the core: packages of `rollax` that add algorithms, fields of configs, and more.

The core works without their folders. `rollax.EXTENSIONS` names the packages, which have some of these tables:

| table | content |
|---|---|
| `ALGORITHMS` | name -> "module:Trainer" |
| `FIELDS` | name of a class in `rollax.config.contributed` -> paths "module:Group" of the fields that it gets |
| `NAMES_IN_SECTIONS` | section of a config -> its keys that hold code; see `rollax.config.field_types` |
| `MOVED` | module of an earlier version -> its name in this version, for the classes that checkpoints name |
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any


@cache
def extensions() -> tuple[Any, ...]:
    """The packages of the extensions that are installed."""
    import rollax

    return tuple(importlib.import_module(name) for name in rollax.EXTENSIONS if importlib.util.find_spec(name))


def contributed(table: str) -> dict[str, Any]:
    """Returns the entries of a table, merged over all extensions."""
    return {key: value for module in extensions() for key, value in getattr(module, table, {}).items()}


def contributed_groups(config: str) -> tuple[type, ...]:
    """Returns the groups of fields that extensions add to a class of `rollax.config.contributed`."""
    paths = (path.split(":") for module in extensions() for path in getattr(module, "FIELDS", {}).get(config, ()))
    return tuple(getattr(importlib.import_module(module), name) for module, name in paths)
