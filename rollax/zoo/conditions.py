"""The conditions of a measurement: the kind of machine and the versions. Equal conditions give equal bits."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rollax.zoo.entry import short_hash

PACKAGES = ("rollax", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium")
_OF_TAGS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "atari": "ale-py",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "torch": "torch",
}
"""Tag of an entry -> further package whose version can change the results."""
_VECTORS = ("avx512f", "avx2", "avx", "sve", "asimd")  # widest first, as XLA chooses
_FLAGS_OF_XLA = "XLA_FLAGS"


def machine() -> dict[str, str | int]:
    """Returns the kind of machine: operating system, processor, cores that this process may use, device of JAX.

    None of these values identifies the machine. XLA compiles for the vector instructions of the processor, and divides
    work among the cores, so both can change the last bits of a sum. Flags in the environment variable `XLA_FLAGS` can
    too; the result has only their hash, because flags may contain paths.
    """
    import jax

    flags = os.environ.get(_FLAGS_OF_XLA, "").strip()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "vector": _vector(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "device": jax.devices()[0].device_kind,
        **({_FLAGS_OF_XLA: short_hash(flags.encode())} if flags else {}),
    }


def versions(tags: tuple[str, ...]) -> dict[str, str]:
    """Returns the version of Python and of each package that computes numbers, for an entry with these tags."""
    named = [*PACKAGES, *(package for tag, package in _OF_TAGS.items() if tag in tags)]
    return {"python": platform.python_version(), **{name: _version(name) for name in named}}


def differences(measured: Mapping[str, object], here: Mapping[str, object]) -> list[str]:
    """Returns a text for each condition that differs, such as "cores: measured with 1, here 2"."""
    names = dict.fromkeys([*measured, *here])
    changed = [name for name in names if measured.get(name) != here.get(name)]
    return [f"{name}: measured with {measured.get(name, 'none')}, here {here.get(name, 'none')}" for name in changed]


def _vector() -> str:
    info = Path("/proc/cpuinfo")
    words = set(info.read_text(encoding="utf-8", errors="replace").split()) if info.exists() else set()
    return next((name for name in _VECTORS if name in words), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
