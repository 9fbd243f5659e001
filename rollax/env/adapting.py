"""Environments of other interfaces, through their adapters."""

from __future__ import annotations

from typing import Any

from rollax.env import legacy
from rollax.env.multi_agent import pettingzoo_env


def adapted(env: Any) -> Any:
    """The same environment with an interface of today; one that has it is left as it is."""
    return legacy.adapt(pettingzoo_env.adapt(env))
