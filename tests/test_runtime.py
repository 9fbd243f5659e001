"""What the process settles before JAX starts."""

from __future__ import annotations

import ctypes
import platform

import pytest

from rollax import runtime


@pytest.fixture
def settings(monkeypatch):
    """What glibc is told."""
    told = []

    class Library:
        def __init__(self, name):
            assert name is None

        def mallopt(self, parameter, amount):
            told.append((parameter, amount))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    return told


def test_memory_is_kept_between_updates(settings):
    runtime._keep_memory()
    # malloc.h: M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_THRESHOLD -3, of which 32 MiB is the most.
    assert settings == [(-1, 512 * 2**20), (-2, 256 * 2**20), (-3, 32 * 2**20)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_a_users_own_settings_stand(settings, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    runtime._keep_memory()
    assert settings == []


def test_other_libraries_are_left_alone(settings, monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    runtime._keep_memory()
    assert settings == []
