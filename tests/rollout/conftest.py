"""Fixtures shared by tests of actor pools."""

from __future__ import annotations

from tests.processes.conftest import clock, pool

__all__ = ["clock", "pool"]
