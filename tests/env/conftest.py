import pytest

from rollax.env import checks


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    """What is said once is said once in each test."""
    monkeypatch.setattr(checks, "_said", set())
