"""Values and errors as text, where the `repr` or `str` of a user's class may raise."""

from __future__ import annotations

from typing import Any


def repr_of(value: Any) -> str:
    """The value's `repr`; `object.__repr__` if it raises, as in a faulty user class or with too many levels."""
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def text_of(error: BaseException) -> str:
    """The message of an error, or that it has none that can be shown: `str` of a user's class may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"a message that cannot be shown, because its __str__ raises {type(failure).__name__}"


def shown(value: Any, limit: int = 300) -> str:
    text = value if isinstance(value, str) else repr_of(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
