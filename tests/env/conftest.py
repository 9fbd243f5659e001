import logging
import warnings

import pytest

from rollax.env import checks


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    """What is said once is said once in each test."""
    monkeypatch.setattr(checks, "_said", set())


@pytest.fixture(scope="session")
def small_ray():
    """Ray with little of everything, for all tests of this process."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=1,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    yield ray
    ray.shutdown()
