"""The sides of benchmarks: a function of a module, its settings, and the Python that runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.processes import Side

Settings = Mapping[str, Any]


def own(name: str, function: str, settings: Settings, **how: Any) -> Side:
    """Returns a side that runs in rollax's Python.

    Args:
        name: its name in the tables.
        function: module of `benchmarks.sides` and function, such as "raw.loop".
        settings: arguments of the function, in JSON's types.
        how: further arguments of `Side`.
    """
    return Side(name, _arguments("sides", function, settings), **how)


def peer(name: str, function: str, settings: Settings, **how: Any) -> Side:
    """Returns a side that runs in another library's virtual environment, which the module of the function names."""
    return Side(name, _arguments("peer_scripts", function, settings), peer=function.partition(".")[0], **how)


def _arguments(folder: str, function: str, settings: Settings) -> tuple[str, ...]:
    module, name = function.split(".")
    return ("-m", f"benchmarks.{folder}.{module}", name, json.dumps(settings))
