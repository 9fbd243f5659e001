"""Fixtures of the tests of environments that fail."""

import pytest

from tests.env.remote.fragile import EventLog


@pytest.fixture
def event_log(tmp_path):
    return EventLog(tmp_path / "event_log")
