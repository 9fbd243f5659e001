import pytest

from rollax.env import checks
from tests.env.remote.fragile import EventLog


@pytest.fixture(autouse=True)
def reset_logged_warnings(monkeypatch):
    """Warnings that are logged once per process are logged once in each test."""
    monkeypatch.setattr(checks, "_said", set())


@pytest.fixture
def event_log(tmp_path):
    return EventLog(tmp_path / "event_log")
