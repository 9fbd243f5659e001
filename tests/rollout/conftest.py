"""Fixtures shared by tests of actor pools."""

from tests.processes.conftest import clock, pool

__all__ = ["clock", "pool"]
