"""Immutable configs, which copy their dicts, lists and tuples recursively, and the hashable content of values."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Union, get_args, get_origin

import numpy as np
from gymnasium import Space, spaces
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from rollax.errors import ConfigError, nearest

_WIDEST = 2**63


class _ReadOnly:
    """Base of `FrozenDict` and `FrozenList`; `key` is the config key, for the error that refuses a change."""

    def __init__(self, items: Any = (), key: str = "") -> None:
        super().__init__(items)  # pyright: ignore[reportCallIssue]  of dict or list
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        plain: Any = self
        return type(self), (plain.copy(), self.key)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        changed = f"{self.key.partition('.')[0].partition('[')[0] or 'key'}={{...}}"
        raise ConfigError(
            "A config and the values in it are immutable.",
            f"config key '{self.key}'" if self.key else "a dict or list of a config",
            f"a change of {self!r}",
        ).fix(f"create a new config with trainer.config.changed({changed}), and a new trainer with that config")


class FrozenDict(_ReadOnly, dict[Any, Any]):
    """A dict that refuses changes; otherwise a plain dict."""

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _ReadOnly._refuse
        clear = pop = popitem = setdefault = update = _ReadOnly._refuse


class FrozenList(_ReadOnly, list[Any]):
    """A list that refuses changes; otherwise a plain list."""

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _ReadOnly._refuse
        append = clear = extend = insert = pop = remove = reverse = sort = _ReadOnly._refuse


def frozen(value: Any, key: str = "") -> Any:
    """Returns a copy of nested dicts, lists and tuples in which dicts and lists refuse changes."""
    if isinstance(value, dict | MappingProxyType):
        return FrozenDict({name: frozen(part, f"{key}.{name}") for name, part in value.items()}, key)
    if isinstance(value, list):
        return FrozenList([frozen(part, f"{key}[{i}]") for i, part in enumerate(value)], key)
    if _is_tuple(value):
        return _tuple_of(value, [frozen(part, f"{key}[{i}]") for i, part in enumerate(value)])
    return value


def too_deep(value: Any) -> bool:
    """Whether nested dicts, lists and tuples contain themselves, or have more levels than Python can follow."""
    try:
        frozen(value)
    except RecursionError:
        return True
    return False


def thawed(value: Any) -> Any:
    """Returns a copy of nested dicts, lists and tuples with plain dicts and lists."""
    if isinstance(value, dict):
        return {name: thawed(part) for name, part in value.items()}
    if isinstance(value, list):
        return [thawed(part) for part in value]
    return _tuple_of(value, map(thawed, value)) if _is_tuple(value) else value


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make"))


def _tuple_of(like: Any, parts: Iterable[Any]) -> Any:
    """Returns a tuple, or a named tuple of the class of `like`."""
    return tuple(parts) if type(like) is tuple else type(like)._make(parts)


def union_members(annotation: Any) -> Iterator[Any]:
    """Yields the types of a union without `Annotated`, or a single type that is not a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from union_members(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from union_members(member)
    else:
        yield annotation


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yields the types of a union, and the types of the elements of its tuples and dicts."""
    for member in union_members(annotation):
        yield member
        if get_origin(member) in (tuple, dict):
            for part in get_args(member):
                yield from _types_in(part)


def _has_boolean(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == np.bool_
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_has_boolean, value)) if isinstance(value, list | tuple) else isinstance(value, bool | np.bool_)


def fields_by_key(config_class: type[BaseModel]) -> dict[str, str]:
    """Config key -> the name of its field, which differs where Python reserves the key: `lambda`, `lambda_`."""
    aliases = {name: field.validation_alias for name, field in config_class.model_fields.items()}
    return {alias if isinstance(alias, str) else name: name for name, alias in aliases.items()}


class FrozenModel(BaseModel):
    """A pydantic model that refuses changes, also to nested values, with a ConfigError.

    Paths become strings, and NumPy numbers become Python numbers. A string for a boolean, or a boolean for a number, is
    refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)
    part: ClassVar[str] = ""
    """The key of this config in the trainer's config; empty for the trainer's config."""

    # For type checkers this is a frozen model.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            self._refuse(name, value)

        def __delattr__(self, name: str) -> None:
            self._refuse(name, "del")

        def __getitem__(self, name: Any) -> NoReturn:
            """Raises ConfigError, which names the attribute; Python's own error would not."""
            kind = type(self)
            known = fields_by_key(kind).get(name, name)
            config = f"config.{self.part}" if self.part else "config"
            fits = known in kind.model_fields
            raise ConfigError("The keys of a config are read as attributes.", f"{kind.__name__}[{name!r}]").fix(
                f"{config}.{known}" if fits else f"{config}.KEY; {nearest(str(name), kind.model_fields)}"
            )

        def __setitem__(self, name: Any, value: Any) -> None:
            self._refuse(name, value)

        def __delitem__(self, name: Any) -> None:
            self._refuse(name, "del")

    def _refuse(self, name: str, got: Any) -> NoReturn:
        changed = f"{self.part}={{'{name}': ...}}" if self.part else f"{name}=..."
        raise ConfigError("A config is immutable.", f"{type(self).__name__}.{name}", got).fix(
            f"create a new config with config.changed({changed}), and a new trainer with that config"
        )

    @field_validator("*", mode="before")
    @classmethod
    def _plain_values(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, np.generic):
            value = value.item()
        # pydantic would convert "no" to False and True to 1; in a config both are mistakes.
        types = set(_types_in(cls.model_fields[info.field_name or ""].annotation))
        if isinstance(value, str) and bool in types and str not in types:
            raise ValueError("a boolean, true or false (no string)")
        if types & {int, float} and bool not in types and _has_boolean(value):
            raise ValueError("a number" if isinstance(value, bool) else "numbers (no booleans)")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _frozen(cls, value: Any, info: ValidationInfo) -> Any:
        key = f"{cls.part}.{info.field_name}" if cls.part else str(info.field_name)
        if type(value) is int and not -_WIDEST <= value < _WIDEST:
            raise ValueError("an integer of 64 bits")
        try:
            return frozen(value, key)
        except RecursionError:
            raise ValueError("a value of fewer levels, which does not contain itself") from None


_RANDOM_STATE = frozenset({"_np_random", "_np_random_seed"})  # attributes of a space that sampling changes


def content_of(value: Any) -> Hashable:
    """Returns the content of configs, spaces, arrays, and nested dicts, lists, tuples and sets; 1, 1.0, True differ.

    Any other value, such as a class or a function, is equal to itself only.
    """
    kind = type(value)
    if isinstance(value, BaseModel):
        return kind, _of_mapping(vars(value))
    if isinstance(value, Space):
        order = tuple(value.spaces) if isinstance(value, spaces.Dict) else ()  # the outputs of a model follow it
        return kind, order, _of_mapping({name: part for name, part in vars(value).items() if name not in _RANDOM_STATE})
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return kind, _of_mapping(value)
    if isinstance(value, list | tuple):
        return kind, tuple(map(content_of, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(content_of, value))
    if isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype | None):
        return kind, repr(value)  # 0.0 and -0.0 are equal, but their representations differ
    return _Itself(value)


def _of_mapping(values: Mapping[Any, Any]) -> Hashable:
    return frozenset((content_of(key), content_of(value)) for key, value in values.items())


class _Itself:
    """Compares a value by identity. It holds a reference, so that no other object gets the address of the value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
