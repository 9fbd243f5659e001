"""Parameters split between the short and the long part of the tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def long_except(short: Collection[str], values: Mapping[str, Any] | Iterable[str]) -> list[Any]:
    """Returns a parameter for each value, by its id; those whose id is not in `short` are marked `long`."""
    named = values if isinstance(values, Mapping) else {name: name for name in values}
    unknown = set(short) - set(named)
    assert not unknown, f"no such parameter: {sorted(unknown)}"
    return [
        pytest.param(value, id=name, marks=() if name in short else pytest.mark.long) for name, value in named.items()
    ]
