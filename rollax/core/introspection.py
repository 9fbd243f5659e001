"""Facts about a user's class: which methods it overrides, what they accept, and which names its bases add.

Callers skip a base method that does nothing, and do not use compiled code that would bypass an override.
"""

from __future__ import annotations

import inspect
from typing import Any


def overrides(kind: type, base: type, *methods: str) -> bool:
    """Whether a class overrides all of these methods of `base`, itself or in a class between them."""
    return all(getattr(kind, method) is not getattr(base, method) for method in methods)


def defining_class(kind: type, method: str) -> type:
    """The class, `kind` or a base, whose method it is."""
    return next(base for base in kind.__mro__ if method in vars(base))


def names_of_bases(kind: type, attribute: str) -> frozenset[str]:
    """The union of a class attribute, a set of names, over a class and its bases."""
    return frozenset[str]().union(*(vars(base).get(attribute, ()) for base in kind.__mro__))


def accepted(function: Any) -> frozenset[str] | None:
    """The names of a function's keyword arguments; None: any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def call_accepted(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with the keyword arguments that it accepts."""
    names = accepted(function)
    return function(*args, **{key: value for key, value in kwargs.items() if names is None or key in names})
