"""Options, settings and fixtures for all tests."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.marks import mark_long

_MINUTES = 10
_MAPS, _MOST_REGIONS = Path("/proc/self/maps"), 40_000
_MOST_BYTES_COMPILED = 1 << 30
_TESTS_RUN = pytest.StashKey[int]()
_SMALL_CPUS = 2
_COMPILED_QUICKLY = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
)
_BEFORE_JAX_0_11 = "--xla_cpu_use_fusion_emitters=false"  # a version without this flag ends the process

# Few random examples by default, many with --hypothesis-profile=many. They are the same in every run.
for _profile, _examples in (("few", 15), ("many", 200)):
    settings.register_profile(
        _profile, max_examples=_examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("few")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--learning-results` and `--optimized`, for the long learning runs."""
    parser.addoption("--learning-results", metavar="FILE", help="table for the curves of long learning runs")
    parser.addoption("--optimized", action="store_true", help="XLA optimizes compiled code, as it does for users")


def pytest_configure(config: pytest.Config) -> None:
    """Sets environment variables for this process and its children, before any of them starts JAX.

    Most tests compile much and compute little: compiling without optimization takes a fifth of the time. All
    processes of a run share one compilation cache, which later runs read too.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # inherited from the main process
    # Set before PyTorch starts. Otherwise the threads of several processes would compete for the same cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not config.getoption("--optimized"):
        older = version("jaxlib").startswith(("0.8.", "0.9.", "0.10."))
        flags = (*_COMPILED_QUICKLY, _BEFORE_JAX_0_11) if older else _COMPILED_QUICKLY
        os.environ["XLA_FLAGS"] = " ".join((*flags, os.environ.get("XLA_FLAGS", "")))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_kept_folder(config)))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # no test reads from where an operation came
    if (jax := sys.modules.get("jax")) is not None:  # imported by the plugin of jaxtyping; it has read its variables
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        jax.config.update("jax_traceback_in_locations_limit", int(os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"]))


def _kept_folder(config: pytest.Config) -> Path:
    """The folder of the compilation cache, emptied when it is large: programs of older code stay in it."""
    if not hasattr(config, "cache"):  # with -p no:cacheprovider
        folder = tempfile.TemporaryDirectory(prefix="rollax-tests-")
        config.add_cleanup(folder.cleanup)
        return Path(folder.name)
    kept = config.cache.mkdir("compiled")
    if sum(file.stat().st_size for file in kept.iterdir()) > _MOST_BYTES_COMPILED:
        shutil.rmtree(kept)
        kept.mkdir()
    return kept


@pytest.hookimpl(tryfirst=True)  # before `-m` selects tests
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Applies the marks `short`; runs modules with long tests first, so that processes end at about the same time."""
    some = config.getoption("lf", False) or any("::" in argument for argument in config.args)
    mark_long(items, complete=not some)
    first = (
        "tests/test_docs_blocks.py",
        "tests/test_examples.py",
        "tests/faults/",
        "tests/test_docs",
        "tests/env/remote/",
        "tests/torch/test_twins.py",  # among the last otherwise
    )

    def place(item: pytest.Item) -> int:
        return next((number for number, name in enumerate(first) if item.nodeid.startswith(name)), len(first))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collects no garbage meanwhile, and less afterwards: JAX allocates much, and the caches that are visited grow."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Frees compiled functions before the process has as many mapped regions as Linux allows, 65,530: it would crash.

    A compiled function of JAX has several of them.
    """
    count = item.config.stash[_TESTS_RUN] = item.config.stash.get(_TESTS_RUN, 0) + 1
    if count % 20 or not _MAPS.exists() or "jax" not in sys.modules:
        return
    with _MAPS.open("rb") as maps:
        regions = sum(1 for _ in maps)
    if regions > _MOST_REGIONS:
        import jax

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what earlier tests have left, which is no fault of this one
            jax.clear_caches()
            gc.collect()


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that hangs, so that the other tests still run. Long learning runs have no limit."""
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


@pytest.fixture
def cleared_cache() -> None:
    """Clears the cache of compiled functions, so that `compilations` counts only those of this test."""
    import jax

    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def small_ray() -> Iterator[Any]:
    """Ray with few resources, shared by all tests of this process."""
    import ray

    _begin_small_ray(ray)
    yield ray
    ray.shutdown()


@pytest.fixture
def own_ray() -> Iterator[None]:
    """No Ray yet: processes of one that an earlier test has started do not import modules of this test's folder."""
    ray = sys.modules.get("ray")
    is_small = ray is not None and ray.is_initialized() and ray.cluster_resources().get("CPU") == _SMALL_CPUS
    if ray is not None:
        ray.shutdown()
    yield
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()
        if is_small:  # later tests have it as their fixture
            _begin_small_ray(ray)


def _begin_small_ray(ray: Any) -> None:
    if ray.is_initialized():
        ray.shutdown()  # started by a trainer of another test, with all resources of this machine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",  # never another Ray cluster on this machine
            num_cpus=_SMALL_CPUS,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
