"""The name that someone meant who made a typing error."""

from __future__ import annotations

from collections.abc import Iterable

_LETTERS_PER_ERROR = 6


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for someone who wrote `name` and must have meant one of `known`."""
    names = sorted(known)
    match = corrected(name, names)
    return f"did you mean '{match}'?" if match is not None else f"use one of: {', '.join(names)}"


def corrected(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` is a typing error away from; None if all of them are other words.

    One error for every six letters is allowed, and one in a shorter name. With more, words of the same kind that mean
    something else would match: 'exploration_config' and 'evaluation_config' are four apart.
    """
    written = name.lower()
    distance, match = min(((typing_errors(written, other.lower()), other) for other in known), default=(0, None))
    return match if distance <= max(len(name) // _LETTERS_PER_ERROR, 1) else None


def typing_errors(a: str, b: str) -> int:
    """Letters left out, added, replaced, or swapped with their neighbour (Damerau, 1964) on the way from `a` to `b`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        before, last, row = row, before, [i + 1]
        for j, y in enumerate(b):
            row.append(min(before[j] + (x != y), before[j + 1] + 1, row[j] + 1))
            if i and j and (x, a[i - 1]) == (b[j - 1], y):
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]
