"""Groups of fields that extensions contribute to configs.

Type checkers read `contributed.pyi`, which has the groups of all extensions of this distribution.
"""

from __future__ import annotations

from pydantic import create_model

from rollax.config.hooks import ConfigHooks
from rollax.core.extensions import extensions


def _with_groups(name: str, doc: str) -> type[ConfigHooks]:
    groups = tuple(group for module in extensions() for group in getattr(module, "FIELDS", {}).get(name, ()))
    return create_model(name, __base__=groups or ConfigHooks, __doc__=doc, __module__=__name__)


FieldsOfEveryConfig = _with_groups("FieldsOfEveryConfig", "The contributed fields of the configs of all algorithms.")
FieldsOfReplay = _with_groups("FieldsOfReplay", "The contributed fields of algorithms with a replay buffer.")
