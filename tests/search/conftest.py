"""Fixtures that measure learning runs."""

from tests.learning_curves import learning_run, reaches

__all__ = ["learning_run", "reaches"]
