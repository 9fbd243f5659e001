"""The extensions of the core: packages of `rollax` that add algorithms, fields of configs, and more.

The core works without their folders. `rollax.EXTENSIONS` names one module per extension, with some of these tables:

| table | content |
|---|---|
| `ALGORITHMS` | name -> "module:Trainer" |
| `FIELDS` | name of a class in `rollax.config.contributed` -> groups of fields that the extension adds to it |
| `MOVED` | module of an earlier version -> its name in this version, for the classes that checkpoints name |
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any


@cache
def extensions() -> tuple[Any, ...]:
    import rollax

    present = (name for name in rollax.EXTENSIONS if importlib.util.find_spec(name.rpartition(".")[0]) is not None)
    return tuple(importlib.import_module(name) for name in present)


def contributed(table: str) -> dict[str, Any]:
    """Returns the entries of a table, merged over all extensions."""
    return {key: value for module in extensions() for key, value in getattr(module, table, {}).items()}
