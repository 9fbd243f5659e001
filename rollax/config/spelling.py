"""Corrections of misspelled names."""

from __future__ import annotations

from collections.abc import Iterable

_LETTERS_PER_ERROR = 6


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the one of `known` nearest to `name`, or else all of them."""
    names = sorted(known)
    match = corrected(name, names)
    return f"did you mean '{match}'?" if match is not None else f"use one of: {', '.join(names)}"


def corrected(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` of which `name` is a misspelling, with at most one error for every six letters, or None."""
    written = name.lower()
    distance, match = min(((typing_errors(written, other.lower()), other) for other in known), default=(0, None))
    return match if distance <= max(len(name) // _LETTERS_PER_ERROR, 1) else None


def typing_errors(a: str, b: str) -> int:
    """The Damerau-Levenshtein distance of two names: letters omitted, added, replaced or swapped (Damerau, 1964)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        before, last, row = row, before, [i + 1]
        for j, y in enumerate(b):
            row.append(min(before[j] + (x != y), before[j + 1] + 1, row[j] + 1))
            if i and j and (x, a[i - 1]) == (b[j - 1], y):
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]
