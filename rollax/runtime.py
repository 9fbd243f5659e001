"""What the process must settle with JAX before its backend starts; the only place that does."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger("rollax.runtime")
_configured = False


def configure_jax() -> None:
    """Sets JAX up for acting in small batches; the first call counts, and a user's own settings stand.

    Asynchronous dispatch on the CPU hands every small forward pass to another thread, which costs more than the
    arithmetic. Compiled functions are kept on disk between runs, for compiling is a third of a short one.
    """
    global _configured
    if _configured:
        return
    _configured = True
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
