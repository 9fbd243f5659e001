"""An environment with counters."""

import pytest

from tests.offline.data_runs import Line


@pytest.fixture
def line():
    """`Line`, whose counts begin at 0."""
    Line.resets = Line.steps = 0
    return Line
