import pytest

from rollax.env import checks


@pytest.fixture(autouse=True)
def reset_logged_warnings(monkeypatch):
    """Warnings that are logged once per process are logged once in each test."""
    monkeypatch.setattr(checks, "_said", set())
