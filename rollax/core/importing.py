"""Import of objects by path, "module:Class", and the rules for which paths are imported.

All imports by a name that is not a constant go through `import_object` and `import_module`. Both refuse plain strings,
because names from files and requests are plain strings. Only `named_by_file` imports modules of rollax by such names.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rollax.core.extensions import contributed
from rollax.errors import INSTALLS, ConfigError, RollaxError, corrected, missing_package, not_installed, text_of

_OWN_CLASS = re.compile(r"(rollax(?:\.[a-z]\w*)+):([A-Z]\w*)", re.ASCII)

_MOST_NAMES = 10

REGISTERED: set[str] = set()
"""The names that `register_env` has registered; such a name is not a path, even if it has a colon."""
_ALGORITHMS = re.compile(r"rollax\.(algorithms|offline|search)\.\w+")
JAX_ENV = "jax:"
"""The prefix of rollax's environments in JAX, which is not a module."""


class ImportPath(str):
    """A path "module:Name" that the caller wrote, in code or on the command line.

    Only such a path is imported. Operations on it return plain strings, and stored paths are read as plain strings.
    """

    __slots__ = ()


def named_by_caller(value: Any) -> Any:
    """Returns an argument of the caller as an `ImportPath` if it is a string with a colon, otherwise unchanged."""
    return ImportPath(value) if isinstance(value, str) and ":" in value else value


@dataclass(frozen=True)
class StoredCode:
    """Code that is named in a file but not imported: the file is not trusted, or the code has no import path.

    Calling it raises ConfigError.
    """

    key: str
    path: str | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error()

    def error(self) -> ConfigError:
        trusting = ", or pass trust_code=True (--trust-code) if you trust the file" if self.path else ""
        return ConfigError(
            "A class or function that the loaded config names was not imported.", f"config key '{self.key}'", self.shown
        ).fix(f"pass {self.key} itself{trusting}")

    @property
    def shown(self) -> str:
        return self.path or (
            "code without an import path (local, a lambda, or of the main script), or an object that cannot be stored"
        )


def named_by_file(path: str, key: str, *, base: tuple[str, ...], trusted: bool) -> Any:
    """Returns the object for a path in a file, or a `StoredCode` if the path must not be imported.

    Only this function turns names in a file into objects. If the file is not trusted, it imports only classes of rollax
    that are defined in the named module and derive from a class in `base`, so only code of rollax runs.

    Args:
        path: "module:Class".
        key: its location in the file.
        base: the paths of base classes in rollax, one of which the class must have; () if no class of rollax fits.
        trusted: whether the caller trusts the file; if so, a path that cannot be imported raises ConfigError.
    """
    path = current_path(path)
    if trusted:
        return import_object(ImportPath(path), f"config key '{key}'")
    own = _own_class(path, base)
    return StoredCode(key, path) if own is None else own


def _own_class(path: str, base: tuple[str, ...]) -> type | None:
    named = _OWN_CLASS.fullmatch(path) if base else None
    if named is None:
        return None
    try:
        found = vars(importlib.import_module(named[1])).get(named[2])
    except ImportError:
        return None
    if not isinstance(found, type) or inspect.isabstract(found) or path_of(found) != path:
        return None
    return None if set(base).isdisjoint(map(path_of, found.__mro__)) else found


def current_path(path: str) -> str:
    """This version's path of a class that a file names: the module may have moved since the file was written."""
    module, colon, name = path.partition(":")
    if _ALGORITHMS.fullmatch(module):  # earlier versions had policy classes, such as PPOPolicy, for algorithms
        name = name.removesuffix("Policy")
    return f"{contributed('MOVED').get(module, module)}{colon}{name}"


def path_of(value: Any) -> str:
    """Returns "module:qualname" of a class or function."""
    return f"{value.__module__}:{value.__qualname__}"


def import_object(path: str, where: str) -> Any:
    """Returns the object at "module:Class" or "module:Outer.Inner"; the module may be in the current folder.

    Args:
        path: an `ImportPath`.
        where: the origin of the path, for errors.
    Raises:
        ConfigError: the path is a plain string; or the module cannot be imported, or does not have the name.
    """
    found: Any = import_module(path, where)
    module_name, _, qualname = path.partition(":")
    for name in qualname.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            fix = f"did you mean {near!r}?" if (near := corrected(name, dir(found))) else _missing(name, found)
            raise _does_not_import(path, module_name, where, error, fix) from error
    return found


def current_folder() -> str | None:
    """The working directory; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def import_module(path: str, where: str) -> ModuleType:
    """Returns the module of a path "module:Name"; raises ConfigError like `import_object`."""
    if not isinstance(path, ImportPath):
        if ":" not in path:
            raise ConfigError.is_not("The name of code", "module:Name", where, path).fix(
                "pass the class or function itself, or its path, such as my_module:MyClass"
            )
        raise ConfigError(
            "The caller did not write this name of a class or function, so its module is not imported.", where, path
        ).expected(
            "a name from the caller's code or the command line; this one is from a file or a request",
            "pass the class, the function or its name yourself, or import its module before; or, if you trust the "
            "file, pass trust_code=True (--trust-code)",
        )
    name, colon, _ = path.partition(":")
    try:
        if not colon:
            raise ValueError("a path without a colon")
        here = current_folder()
        if here is not None and name.partition(".")[0] not in sys.modules and here not in sys.path:
            # Appended, so that no file of the current folder shadows an installed package.
            sys.path.append(here)
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a script without a main guard may call sys.exit
        if isinstance(error, ImportError) and (missing := missing_package(error)) in INSTALLS:
            raise not_installed(path, error, where=where, package=missing, fix=INSTALLS[missing]) from error
        raise _does_not_import(path, name, where, error) from error


def _missing(name: str, holder: Any) -> str:
    """Returns the fix for a name that a module or class lacks, with some of its own classes and functions."""
    if not isinstance(holder, ModuleType | type):
        return f"name a class or function of a module, not {name!r} of {holder!r}"
    module = holder.__name__ if isinstance(holder, ModuleType) else holder.__module__
    defined = sorted(
        key
        for key, value in vars(holder).items()
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module
    )
    others = f"; {holder.__name__} has {', '.join(defined[:_MOST_NAMES])}" if defined else ""
    return f"define {name or 'the class'} in {holder.__name__}, or correct the name{others}"


def _does_not_import(path: str, module: str, where: str, error: BaseException, fix: str | None = None) -> ConfigError:
    parts = error.parts if isinstance(error, RollaxError) else {}  # such as an error of a missing extra
    check = f"check the spelling, and that this works: python -c 'import {module or 'module'}'"
    what = "The class or function cannot be imported."
    return ConfigError(what, where, f"{path} ({type(error).__name__}: {parts.get('what') or text_of(error)})").expected(
        "module:Class, importable from the current folder or the installed packages", fix or parts.get("fix", check)
    )
