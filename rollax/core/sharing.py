"""`shared`: compiled functions that equal policies share, so that the second one compiles nothing."""

from __future__ import annotations

import copy
import enum
import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

Made = TypeVar("Made")

_KEPT = 64  # sets of compiled functions; a policy in use keeps its own
_LIBRARIES = frozenset({"rollax", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "builtins", "collections"})
_TYPE_CHECKS = frozenset({"jaxtyping", "beartype"})  # wrappers of functions that do not change their result
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, enum.Enum)
_RANDOM_STATE = frozenset({"_np_random", "_np_random_seed"})  # attributes of a space that sampling changes

_made: OrderedDict[Hashable, Any] = OrderedDict()
_contents: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()  # of immutable objects
_lock = threading.Lock()


class _NotComparableError(Exception):
    """The content of a value cannot be compared."""


def cached_compilation(make: Callable[..., Made], *parts: Any) -> Made | None:
    """`make` of copies of the parts, which is the same object for equal parts; None if a part has code of a user.

    A compiled function depends on all values that are read during tracing. Code of this library and its dependencies
    reads only the values that it is made from, so `parts` are compared by content: plain values, arrays, spaces,
    configs, and the attributes and closures of the libraries' objects and functions. A user's class or function may
    read other state, such as a global variable or a list that has changed since, so parts that contain one are never
    shared. Neither are JAX arrays and random generators.

    The last 64 results are kept, even if they are no longer used.

    Args:
        make: a function or class of this library or JAX that reads only `parts`.
        parts: the result refers to them and outlives policies, so they must not contain trained arrays.
    """
    try:
        key = make, *map(_content, parts)
        hash(key)
    except (_NotComparableError, RecursionError, TypeError):
        return None
    with _lock:
        if key not in _made:
            _made[key] = make(*copy.deepcopy(parts))  # attributes of the parts may be set later
            while len(_made) > _KEPT:
                _made.popitem(last=False)
        _made.move_to_end(key)
        return _made[key]


def clear() -> None:
    """Drops the kept results; policies keep those that they use."""
    with _lock:
        _made.clear()


def _content(value: Any) -> Hashable:
    """A value that is equal for equal content; raises _NotComparableError for users' code and incomparable values."""
    kind = type(value)
    if isinstance(value, _PLAIN):
        _check_known(kind.__module__)
        return kind, repr(value)  # 1, 1.0 and True are equal, and so are 0.0 and -0.0, but their reprs differ
    if isinstance(value, type):
        _check_known(value.__module__)
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise _NotComparableError
        return kind, value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, FunctionType):
        return _content_of_function(value)
    if isinstance(value, MethodType | partial):
        return kind, *map(_content, _parts_of_call(value))
    _check_known(kind.__module__)
    if _is_named(value):
        return value
    if isinstance(value, Mapping):
        return kind, tuple((_content(key), _content(part)) for key, part in value.items())
    if isinstance(value, Sequence):
        return kind, tuple(map(_content, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_content, value))
    return _content_of_object(value)


def _content_of_object(value: Any) -> Hashable:
    if not getattr(type(value), "never_changes", False):
        return _content_of_attributes(value)
    if value not in _contents:
        _contents[value] = _content_of_attributes(value)
    return _contents[value]


def _content_of_attributes(value: Any) -> Hashable:
    kind = type(value)
    if kind.__module__.partition(".")[0] == "jaxlib" and not callable(value):
        return value  # the structure of a tree compares by content; an array cannot be hashed
    if not hasattr(value, "__dict__") and not any("__slots__" in vars(base) for base in kind.__mro__):
        raise _NotComparableError  # of compiled code
    slots = {name for base in kind.__mro__ for name in _as_tuple(vars(base).get("__slots__", ()))}
    attributes = {**getattr(value, "__dict__", {}), **{n: getattr(value, n) for n in slots if hasattr(value, n)}}
    names = sorted(name for name in attributes.keys() - _RANDOM_STATE if name[:2] != "__")
    return kind, tuple((name, _content(attributes[name])) for name in names)


def _is_named(value: Any) -> bool:
    """Whether a callable of JAX, such as `jax.nn.relu`, is defined there, and not made from another function."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not callable(value) or not isinstance(module, str) or module.partition(".")[0] != "jax" or name is None:
        return False
    return getattr(sys.modules.get(module), name, None) is value


def _as_tuple(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _content_of_function(function: FunctionType) -> Hashable:
    module = function.__globals__["__name__"]
    if module.partition(".")[0] in _TYPE_CHECKS and hasattr(function, "__wrapped__"):
        return _content(function.__wrapped__)
    _check_known(module)
    cells = function.__closure__ or ()
    rest = function.__defaults__, function.__kwdefaults__, tuple(cell.cell_contents for cell in cells)
    return module, function.__code__, _content(rest)


def _parts_of_call(value: Any) -> tuple[Any, ...]:
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    return value.__func__, value.__self__


def _check_known(module: str) -> None:
    if module.partition(".")[0] not in _LIBRARIES:
        raise _NotComparableError
