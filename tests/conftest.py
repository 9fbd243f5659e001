"""What holds for every test."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

_MINUTES = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--learning-results`, for the long learning runs."""
    parser.addoption("--learning-results", metavar="FOLDER", help="where long learning runs leave their curves")


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that hangs fails, and does not take the whole run with it; long learning runs may take their time."""
    if request.node.get_closest_marker("learning") is not None:
        yield
        return

    def raise_error(*_: Any) -> None:
        raise TimeoutError(f"the test did not end within {_MINUTES} minutes")

    before = signal.signal(signal.SIGALRM, raise_error)
    signal.alarm(60 * _MINUTES)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def small_ray() -> Iterator[Any]:
    """Ray with little of everything, for all tests of this process."""
    import ray

    if ray.is_initialized():
        ray.shutdown()  # one that a trainer of another test has started, with all that this machine has
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",  # and not whatever else runs on this machine
            num_cpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    yield ray
    ray.shutdown()
