"""Errors for the attributes, arguments and public names of RLlib and Stable-Baselines3, which say what replaces them.

The replacements are in `rollax/core/replacements.py`, which is loaded when a name is unknown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from rollax.errors import nearest

Method = TypeVar("Method", bound=Callable[..., Any])
Table = Literal["TRAINER", "CONFIG", "RUNNER", "EPISODE", "PUBLIC", "FIT", "EVALUATE", "ACT"]
"""The name of a table of `replacements.py`."""


def naming_arguments(table: Table | None = None) -> Callable[[Method], Method]:
    """Makes a method refuse unknown keyword arguments with a TypeError that says what replaces them in rollax.

    Args:
        table: the table of the arguments of other libraries; None if there is no table for this method.
    """

    def decorate(method: Method) -> Method:
        known = inspect.signature(method).parameters

        @wraps(method)
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    raise _unexpected(type(self), method, name, _replacements(table) if table else {}, known)
            return method(self, *args, **kwargs)

        return cast(Method, checked)

    return decorate


def _unexpected(
    cls: type, method: Callable[..., Any], name: str, others: Mapping[str, str], known: Iterable[str]
) -> TypeError:
    what = f"{cls.__name__}.{method.__name__}() got an unexpected keyword argument {name!r}"
    if name in others:
        return TypeError(f"{what}; in rollax: {others[name].replace('{cls}', cls.__name__).replace('{name}', name)}")
    return TypeError(f"{what}; {nearest(name, [argument for argument in known if argument != 'self'])}")


class _MethodOfClass:
    """A method in `TRAINER` that other libraries call on the class itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        after = owner.__mro__[owner.__mro__.index(OtherNamesOfTrainer) + 1 :]
        for base in after:  # a class of the user that comes later in the method resolution order
            if self._name in vars(base):
                return vars(base)[self._name].__get__(instance, owner)
        raise UnknownAttributeError(f"type object '{owner.__name__}'", owner.__name__, self._name, "TRAINER")


class _OtherNames:
    """Raises AttributeError for unknown attributes, with the replacement if the table of the class has one."""

    _other_names: ClassVar[Table]

    if not TYPE_CHECKING:  # to type checkers these attributes do not exist

        def __getattr__(self, name: str) -> Any:
            kind, inherited = type(self), getattr(super(), "__getattr__", None)
            if hasattr(kind, name):
                return object.__getattribute__(self, name)  # raises the error of a property again
            try:
                if inherited is not None:
                    return inherited(name)
            except AttributeError:
                pass
            raise UnknownAttributeError(f"'{kind.__name__}' object", kind.__name__, name, kind._other_names)


class OtherNamesOfTrainer(_OtherNames):
    """Base of `Trainer`, with the table `TRAINER`."""

    _other_names = "TRAINER"
    if not TYPE_CHECKING:
        load, get_default_config = _MethodOfClass(), _MethodOfClass()


class OtherNamesOfConfig(_OtherNames):
    """Base of `TrainerConfig`, with the table `CONFIG`."""

    _other_names = "CONFIG"


class OtherNamesOfRunner(_OtherNames):
    """Base of `PolicyRunner`, which `load_policy` returns, with the table `RUNNER`."""

    _other_names = "RUNNER"


class OtherNamesOfEpisode(_OtherNames):
    """Base of `Episode`, with the table `EPISODE`."""

    _other_names = "EPISODE"


def public_name(name: str, known: Iterable[str]) -> str | None:
    """Returns what replaces a public name of another library; None if no table has the name.

    Args:
        known: rollax's public names; a trainer among them, such as `PPOTrainer`, replaces `PPO`.
    """
    trainer = f"{name}trainer".casefold()
    return _replacements("PUBLIC").get(name) or next((ours for ours in known if ours.casefold() == trainer), None)


def _replacements(table: Table) -> Mapping[str, str]:
    from rollax.core import replacements  # loaded only for unknown names

    return getattr(replacements, table)


class UnknownAttributeError(AttributeError):
    """Looks up its message only when it is shown, because many callers only ask whether an attribute exists."""

    def __str__(self) -> str:
        owner, kind, name, table = self.args
        what, ours = f"{owner} has no attribute {name!r}", _replacements(table).get(name)
        return what if ours is None else f"{what}; in rollax: {ours.replace('{cls}', kind)}"
