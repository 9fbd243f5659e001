"""Configs: the fields of every algorithm, and how a plain dict becomes a config. Imports no JAX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollax.config.field_group import ENABLED, NotIn
    from rollax.config.field_types import Lambda, SchedulePoints
    from rollax.config.multiagent import MultiAgentConfig
    from rollax.config.trainer import TrainerConfig, resolve_config

__all__ = ["ENABLED", "Lambda", "MultiAgentConfig", "NotIn", "SchedulePoints", "TrainerConfig", "resolve_config"]
_MODULE_OF = {
    "ENABLED": "field_group",
    "Lambda": "field_types",
    "MultiAgentConfig": "multiagent",
    "NotIn": "field_group",
    "SchedulePoints": "field_types",
    "TrainerConfig": "trainer",
    "resolve_config": "trainer",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, because groups of fields that extensions add to `TrainerConfig` import this package.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value
