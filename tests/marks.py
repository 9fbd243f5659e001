"""Parameters split between the short and the long part of the tests."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from zlib import crc32

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
    their values in the parametrizations and a number of the function, so that functions with the same parameters keep
    different ones. Of a matrix with three or more values in each parametrization, each value remains.

    Args:
        items: the collected tests.
        complete: whether all tests of each collected function are in `items`.

    Raises:
        pytest.UsageError: a mark names parameters that its function does not have; raised if `items` are complete.
    """
    unknown: dict[str, set[str]] = {}
    seen: dict[tuple[str, int], list[list[int]]] = {}
    for item in items:
        mark, parameters = item.get_closest_marker("short"), getattr(item, "callspec", None)
        if mark is None or parameters is None:
            continue
        function = item.nodeid.split("[")[0]
        unknown.setdefault(function, set(mark.args)).discard(parameters.id)
        every = mark.kwargs.get("every")
        if every is None:
            leave_out = parameters.id not in mark.args
        else:
            found = (seen.setdefault((function, i), []) for i in range(len(parameters.params)))
            numbers = map(_position, found, _values(item, parameters.params))
            leave_out = (sum(numbers) + crc32(function.encode())) % every
        if leave_out:
            item.add_marker(pytest.mark.long)
    wrong = {function: sorted(names) for function, names in unknown.items() if names}
    if complete and wrong:
        raise pytest.UsageError(f"marks `short` name unknown parameters: {wrong}")


def _values(item: pytest.Item, parameters: Mapping[str, Any]) -> Iterator[list[int]]:
    """Yields the values of each parametrization of a test, by identity; parametrized fixtures are one each."""
    left = dict(parameters)
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        yield [id(left.pop(name)) for name in names]
    yield from ([id(value)] for value in left.values())


def _position(seen: list[list[int]], values: list[int]) -> int:
    """Returns the position of `values` in the order of their first appearance."""
    if values not in seen:
        seen.append(values)
    return seen.index(values)
