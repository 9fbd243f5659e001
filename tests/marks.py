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


def mark_long(items: Iterable[pytest.Item], *, complete: bool) -> None:
    """Marks parametrized tests `long` unless the mark `short` of their function keeps them in the short part.

    `short("a", "b")` keeps the parameters with these ids, in the notation of pytest: `long_except` does this for the
    names of one parameter. `short(every=3)` keeps one test in three: those where 3 divides the sum of the positions of
    their parameters. Of a matrix, each value remains.

    Args:
        items: the collected tests.
        complete: whether all tests of each collected function are in `items`.

    Raises:
        pytest.UsageError: a mark names parameters that its function does not have; raised if `items` are complete.
    """
    unknown: dict[str, set[str]] = {}
    for item in items:
        mark, parameters = item.get_closest_marker("short"), getattr(item, "callspec", None)
        if mark is None or parameters is None:
            continue
        unknown.setdefault(item.nodeid.split("[")[0], set(mark.args)).discard(parameters.id)
        every = mark.kwargs.get("every")
        if parameters.id not in mark.args if every is None else sum(parameters.indices.values()) % every:
            item.add_marker(pytest.mark.long)
    wrong = {function: sorted(names) for function, names in unknown.items() if names}
    if complete and wrong:
        raise pytest.UsageError(f"marks `short` name unknown parameters: {wrong}")
