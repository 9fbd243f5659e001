"""What the process must settle with JAX before its backend starts; the only place that does."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any

from rollax.errors import RollaxError

log = logging.getLogger("rollax.runtime")
_configured = False
_forked = False

# Parameters of glibc's mallopt, and what they are set to.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = {_TRIM_THRESHOLD: 512 * 2**20, _TOP_PAD: 256 * 2**20, _MMAP_THRESHOLD: 32 * 2**20}


def configure_jax() -> None:
    """Sets JAX up for acting in small batches; the first call counts, and a user's own settings stand.

    Asynchronous dispatch on the CPU hands every small forward pass to another thread, which costs more than the
    arithmetic. Compiled functions are kept on disk between runs, for compiling is a third of a short one.

    Raises:
        RollaxError: JAX had started when this process was forked.
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
            log.info("No compilation cache: %s", error)
            return
        settings.update("jax_compilation_cache_dir", str(folder))
        settings.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def refuse_forked() -> None:
    """Refuses to go on in a process that was forked after JAX had started: its threads are missing, so it would hang.

    Raises:
        RollaxError: this is such a process.
    """
    if _forked:
        raise RollaxError(
            "JAX cannot be used in a process that was forked after JAX had started.",
            where=f"process {os.getpid()}, forked from process {os.getppid()}",
            got="a fork, as multiprocessing makes it on Linux by default",
            expected="a process that begins anew, or one that was forked before any trainer or policy was made",
            fix='use multiprocessing.get_context("spawn"), and make the trainer in the new process; or num_workers',
        )


def _after_fork() -> None:
    global _forked
    bridge = sys.modules.get("jax._src.xla_bridge")
    # JAX has no public way to ask whether its backend has started; without this one, a policy stands for it.
    started = getattr(bridge, "backends_are_initialized", lambda: _configured)
    _forked = _forked or (bridge is not None and started())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _keep_memory() -> None:
    """Lets glibc keep memory that was given back, up to 512 MiB, for the next to ask, and fetch it in large segments.

    On the CPU each call of a compiled function asks for its intermediate results anew. Those of an update from 32 Atari
    images are 50 MB, and fetching their pages from the system takes nearly as long as the update. Arrays larger than
    what is kept, such as replay buffers, still come from the system and go back to it.
    """
    asked_otherwise = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if asked_otherwise or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for parameter, amount in _KEPT_BYTES.items():
        libc.mallopt(parameter, amount)
