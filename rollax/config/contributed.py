"""Groups of fields that extensions contribute to configs; each class is made on first use.

Type checkers read `contributed.pyi`, which has the groups of all extensions of this distribution.
"""

from __future__ import annotations

from typing import Any

from pydantic import create_model

from rollax.config.hooks import ConfigHooks
from rollax.core.extensions import contributed_groups

_DOCSTRINGS = {
    "FieldsOfEveryConfig": "The contributed fields of the configs of all algorithms.",
    "FieldsOfReplay": "The contributed fields of algorithms with a replay buffer.",
}


def __getattr__(name: str) -> Any:
    if name not in _DOCSTRINGS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    groups: Any = contributed_groups(name) or ConfigHooks
    globals()[name] = made = create_model(name, __base__=groups, __doc__=_DOCSTRINGS[name], __module__=__name__)
    return made
