"""Settings of JAX and glibc that must be made before JAX starts; static arguments, and how often JAX has compiled."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary, ref

from rollax.errors import ConfigError, RollaxError

log = logging.getLogger("rollax.core.runtime")
_configured = False
_forked = False

# Parameters of glibc's mallopt and their values.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = {_TRIM_THRESHOLD: 512 * 2**20, _TOP_PAD: 256 * 2**20, _MMAP_THRESHOLD: 32 * 2**20}


def configure_jax() -> None:
    """Configures JAX for acting in small batches, at the first call.

    Asynchronous dispatch is off: on the CPU it costs more than a small forward pass. Compiled functions are cached on
    disk, because compiling takes a third of a short run. A cache folder that the user has set, a cache that the user
    has switched off, and the user's settings of memory allocation are kept.
    """
    global _configured
    refuse_forked()
    if _configured:
        return
    _configured = True
    _keep_memory()
    import jax

    settings: Any = jax.config
    settings.update("jax_cpu_enable_async_dispatch", False)
    if settings.jax_compilation_cache_dir is None and settings.jax_enable_compilation_cache:
        folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rollax" / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.info("Compiled programs are not cached on disk: %s", error)
            return
        settings.update("jax_compilation_cache_dir", str(folder))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def refuse_forked() -> None:
    """Raises RollaxError in a process that was forked after JAX had started, which would hang without JAX's threads."""
    if _forked:
        got, fix = f"a fork of process {os.getppid()}", 'use multiprocessing.get_context("spawn"), or num_workers'
        raise RollaxError(
            "JAX cannot be used in a process that was forked after JAX had started.", f"process {os.getpid()}", got
        ).expected("a spawned process, or a fork made before any trainer or policy", fix)


def refuse_missing_gpus(required: float) -> None:
    """Raises ConfigError if neither JAX nor PyTorch, if it is loaded, finds `num_gpus` GPUs in this process."""
    if required == 0:
        return
    torch = sys.modules.get("torch")
    found = 0 if torch is None else torch.cuda.device_count()
    if found < required:  # JAX takes most of a GPU's memory when it starts, so it is asked last
        import jax

        found = max(found, sum(device.platform == "gpu" for device in jax.local_devices()))
    if found < required:
        raise ConfigError(
            "The learning process finds fewer GPUs than num_gpus.", "config key 'num_gpus'", required
        ).expected(
            f"at most {found}",
            "lower num_gpus (0 learns without a GPU), or install the JAX or PyTorch version for your GPU; "
            "JAX_PLATFORMS and CUDA_VISIBLE_DEVICES may hide one",
        )


def _after_fork() -> None:
    global _forked
    bridge = sys.modules.get("jax._src.xla_bridge")
    # JAX has no public function that returns whether its backend has started.
    started = getattr(bridge, "backends_are_initialized", lambda: _configured)
    _forked = _forked or (bridge is not None and started())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _keep_memory() -> None:
    """Makes glibc keep up to 512 MiB of freed memory for reuse, and allocate in large blocks."""
    # Requesting memory pages for the intermediate results of a compiled call takes nearly as long as an update on
    # images.
    asked_otherwise = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if asked_otherwise or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for parameter, amount in _KEPT_BYTES.items():
        libc.mallopt(parameter, amount)


class StaticArgument:
    """The base of frozen dataclasses that are static arguments of compiled functions.

    The hash, which each call needs, is computed once. A copy is the object itself. A subclass repeats
    `__hash__ = StaticArgument.__hash__`, because `dataclass` would write another one.
    """

    @cached_property
    def _hash(self) -> int:
        of_fields: Any = self
        return hash(tuple(getattr(self, field.name) for field in fields(of_fields)))

    def __hash__(self) -> int:
        return self._hash

    def __deepcopy__(self, memo: Any) -> Self:
        return self


_T = TypeVar("_T")
_instances: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
_traces: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def first_equal(value: _T) -> _T:
    """Returns the first object equal to `value` that is still in use, or `value` itself if there is none.

    JAX finds a compiled function by its static arguments. JAX recognizes the same object without a call of `__eq__`;
    Ctrl-C within such a call would become a ValueError.
    """
    found = _instances.get(value)
    first = None if found is None else found()
    if first is None:
        _instances[value], first = ref(value), value
    return first


def note_trace(traced: Any) -> None:
    """Counts one compiled version of a method of `traced`; called in the body of each method under `jax.jit`."""
    _traces[traced] = _traces.get(traced, 0) + 1


def trace_count(traced: Any) -> int:
    """Returns the number of compiled versions of the methods of `traced` and of objects equal to it."""
    return _traces.get(traced, 0)
