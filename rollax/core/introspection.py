"""Facts about a user's class: which methods it overrides, which arguments they accept, which names its bases add.

Callers skip a base method that does nothing, and do not use compiled code that would bypass an override.
"""

from __future__ import annotations

import inspect
from typing import Any


def overrides(kind: type, base: type, *methods: str) -> bool:
    """Whether `kind`, or a class between `kind` and `base`, overrides each of these methods of `base`."""
    return all(getattr(kind, method) is not getattr(base, method) for method in methods)


def defining_class(kind: type, method: str) -> type:
    """Returns the class that defines the method: `kind` or one of its bases."""
    return next(base for base in kind.__mro__ if method in vars(base))


def names_of_bases(kind: type, attribute: str) -> frozenset[str]:
    """The union of a class attribute, a set of names, over a class and its bases."""
    return frozenset[str]().union(*(vars(base).get(attribute, ()) for base in kind.__mro__))


def accepted(function: Any) -> frozenset[str] | None:
    """Returns the names of the arguments of a function; None if it accepts any keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def call_accepted(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with `args`, and with the keyword arguments that the function accepts."""
    names = accepted(function)
    return function(*args, **{key: value for key, value in kwargs.items() if names is None or key in names})
