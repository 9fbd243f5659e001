"""The command lines of the sides."""

from __future__ import annotations


def flags(**settings: object) -> tuple[str, ...]:
    """Returns command-line flags: `num_envs=8` is `--num-envs 8`."""
    return tuple(part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value)))


def own(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns a side that runs in rollax's Python."""
    return ("-m", f"benchmarks.sides.{module}", *arguments)


def peer(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns a side that runs in the virtual environment of another library."""
    return ("-m", f"benchmarks.peer_scripts.{module}", *arguments)
