"""Fixtures that measure learning runs, and an environment with counters."""

from __future__ import annotations

import pytest

from tests.learning_curves import learning_run, reaches
from tests.offline.data_runs import Line

__all__ = ["learning_run", "reaches"]


@pytest.fixture
def line():
    """`Line`, whose counts begin at 0."""
    Line.resets = Line.steps = 0
    return Line
