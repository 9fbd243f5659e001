"""Objects named by the path that they import from: "module:Class"."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from rollax.errors import ConfigError


def import_object(path: str, where: str) -> Any:
    """What "module:Class" names; a module of the current folder is found too.

    Args:
        path: a module and, behind the colon, a name in it; a class inside a class is "module:Outer.Inner".
        where: the place that the path came from, for the error message.
    Raises:
        ConfigError: the module does not import, or lacks the name.
    """
    module_name, _, qualname = path.partition(":")
    module = import_module(module_name, path, where)
    try:
        found: Any = module
        for name in qualname.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise _does_not_import(path, module_name, where, error) from error
    return found


def import_module(name: str, path: str, where: str) -> ModuleType:
    """The module of a path.

    Raises:
        ConfigError: it does not import, for whatever reason.
    """
    try:
        if name.partition(".")[0] not in sys.modules and os.getcwd() not in sys.path:
            # Last, so that no file of the current folder hides an installed package.
            sys.path.append(os.getcwd())
        return importlib.import_module(name)
    except Exception as error:
        raise _does_not_import(path, name, where, error) from error


def _does_not_import(path: str, module: str, where: str, error: Exception) -> ConfigError:
    return ConfigError(
        "A class or function that does not import.",
        where=where,
        got=f"{path} ({type(error).__name__}: {error})",
        expected="module:Class, importable from the current folder or the installed packages",
        fix=f"check the spelling, and that this works: python -c 'import {module or 'module'}'",
    )
