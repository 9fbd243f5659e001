"""Configs that cannot change once they are made, nor the dicts and lists in them.

A value that a config takes is copied: the caller's dicts, lists and tuples, all the way down. What else stands in them,
such as arrays and objects, is the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from rollax.errors import ConfigError

_WIDEST = 2**63


class _ReadOnly:
    """What `FrozenDict` and `FrozenList` share: the key of the config that they stand under, and the refusal."""

    key: str

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        changed = f"{self.key.partition('.')[0].partition('[')[0] or 'key'}={{...}}"
        raise ConfigError(
            "A config cannot change once it is made, nor what stands in it.",
            where=f"config key '{self.key}'" if self.key else "a dict or list of a config",
            got=f"a change of {self!r}",
            fix=f"make a new config, trainer.config.changed({changed}), and a new trainer with it",
        )


class FrozenDict(_ReadOnly, dict[Any, Any]):
    """A dict that refuses changes; it equals, prints and serializes like any other.

    Args:
        items: what it holds.
        key: the config key that it stands under, for the error.
    """

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), key: str = "") -> None:
        super().__init__(items)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self), self.key)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _ReadOnly._refuse
        clear = pop = popitem = setdefault = update = _ReadOnly._refuse


class FrozenList(_ReadOnly, list[Any]):
    """A list that refuses changes; it equals, prints and serializes like any other.

    Args:
        items: what it holds.
        key: the config key that it stands under, for the error.
    """

    def __init__(self, items: Iterable[Any] = (), key: str = "") -> None:
        super().__init__(items)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self), self.key)

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _ReadOnly._refuse
        append = clear = extend = insert = pop = remove = reverse = sort = _ReadOnly._refuse


def frozen(value: Any, key: str = "") -> Any:
    """A copy of a tree of dicts, lists and tuples whose dicts and lists refuse changes."""
    if isinstance(value, dict | MappingProxyType):
        return FrozenDict({name: frozen(part, f"{key}.{name}") for name, part in value.items()}, key)
    if isinstance(value, list):
        return FrozenList([frozen(part, f"{key}[{i}]") for i, part in enumerate(value)], key)
    if _is_tuple(value):
        return _tuple_of(value, [frozen(part, f"{key}[{i}]") for i, part in enumerate(value)])
    return value


def thawed(value: Any) -> Any:
    """A copy of a tree of dicts, lists and tuples whose dicts and lists are plain ones."""
    if isinstance(value, dict):
        return {name: thawed(part) for name, part in value.items()}
    if isinstance(value, list):
        return [thawed(part) for part in value]
    return _tuple_of(value, map(thawed, value)) if _is_tuple(value) else value


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_make"))


def _tuple_of(like: Any, parts: Iterable[Any]) -> Any:
    """A tuple, or a named tuple of the class of `like`."""
    return tuple(parts) if type(like) is tuple else type(like)._make(parts)


class FrozenModel(BaseModel):
    """A pydantic model that refuses changes, all the way down, with a ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    part: ClassVar[str] = ""
    """The key of the trainer's config that it stands under; empty for the config itself."""

    # Type checkers see a frozen model.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            self._refuse(name, value)

        def __delattr__(self, name: str) -> None:
            self._refuse(name, "del")

    def _refuse(self, name: str, got: Any) -> NoReturn:
        changed = f"{self.part}={{'{name}': ...}}" if self.part else f"{name}=..."
        raise ConfigError(
            "A config cannot change once it is made.",
            where=f"{type(self).__name__}.{name}",
            got=got,
            fix=f"make a new one, config.changed({changed}), and a new trainer with it",
        )

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
