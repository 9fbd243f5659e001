"""Values, errors, misspelled names and pages as text; the `repr` or `str` of a user's class may raise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_LETTERS_PER_ERROR = 6
_LINK = re.compile(r"\[[^]]*\]\(([\w-]+)\.md(#[\w-]+)?\)")


def repr_of(value: Any) -> str:
    """The value's `repr`; `object.__repr__` if that raises, as in a faulty class or a container nested too deeply."""
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def text_of(error: BaseException) -> str:
    """The message of an error, or a note that it cannot be shown: `str` of a user's class may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"a message that cannot be shown, because its __str__ raises {type(failure).__name__}"


def shown(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else repr_of(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint: "did you mean ...?" with the name that `corrected` returns, or else a list of all known names."""
    names = sorted(known)
    match = corrected(name, names)
    return f"did you mean '{match}'?" if match is not None else f"use one of: {', '.join(names)}"


def corrected(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that `name` misspells, else the only known name that begins with `name`, else None.

    A misspelling has at most one error for every six letters; one error is always allowed. Among equally near names, a
    name that begins with `name` is preferred. Upper and lower case are equal.
    """
    names, written = list(known), name.lower()
    begun = [other for other in names if written and other.lower().startswith(written)]
    distance, _, match = min(
        ((typing_errors(written, other.lower()), other not in begun, other) for other in names), default=(0, True, None)
    )
    if distance <= max(len(name) // _LETTERS_PER_ERROR, 1):
        return match
    return begun[0] if len(begun) == 1 else None


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


def page(name: str, section: str = "") -> str:
    """The command that shows a page, for a message: `page("offline", "formats")` -> "`rollax docs offline#formats`".

    The pages are in the wheel, so this command shows them where there is no checkout and no network.

    Args:
        name: the name of the file in `docs`, without its suffix.
        section: the anchor of a heading; empty for the whole page.
    """
    return f"`rollax docs {name}{'#' if section else ''}{section}`"


def without_links(text: str) -> str:
    """Markdown with the commands that show pages, instead of links to them."""
    return _LINK.sub(lambda link: page(link[1], (link[2] or "")[1:]), text)
