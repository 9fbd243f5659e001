"""Fixtures shared by tests of actor pools."""

from __future__ import annotations

from tests.processes.pools import actor_pool_of, clock, pool

__all__ = ["actor_pool_of", "clock", "pool"]
