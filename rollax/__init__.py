"""Reinforcement learning: trains, evaluates, serves and exports policies.

`__init__.pyi` lists the public names. Each is imported on first use, so `import rollax` imports neither JAX nor Ray,
and processes of environments stay small. `from rollax import *` leaves out names of extras and extensions that are not
installed.
"""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

EXTENSIONS = ("rollax.offline", "rollax.search")
"""The packages that add algorithms and config fields to the core; see `rollax.core.extensions`."""
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULE_OF = {
    alias.name: str(node.module) for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names
}
_NEEDS = {
    "rollax.offline.writer": ("pyarrow", "offline"),
    "rollax.env.multi_agent.pettingzoo_export": ("pettingzoo", "pettingzoo"),
    "rollax.serving.policy_": ("msgspec", "serving"),
    "rollax.serving.server": ("msgspec", "serving"),
    "rollax.torch.": ("torch", "torch"),
}
"""Prefix of a module's name -> package that it requires, and the extra with that package."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        needs = [(start, package) for start, (package, _) in _NEEDS.items()]
        needs += [(f"{part}.", part) for part in {".".join(module.split(".")[:2]) for module in _MODULE_OF.values()}]
        absent = tuple(start for start, package in needs if importlib.util.find_spec(package) is None)
        return [public for public, module in _MODULE_OF.items() if not module.startswith(absent)]
    if name not in _MODULE_OF:
        raise _unknown(name, sys._getframe(1).f_code.co_name == "_handle_fromlist")
    collects = gc.isenabled()
    gc.disable()  # imports make little garbage, and looking for it takes a quarter of their time
    try:
        module = importlib.import_module(_MODULE_OF[name])
    except ModuleNotFoundError as error:
        needs = next((needs for start, needs in _NEEDS.items() if _MODULE_OF[name].startswith(start)), None)
        if needs is None:
            raise
        from rollax.errors import not_installed

        raise not_installed(name, error, where=f"rollax.{name}", package=needs[0], extra=needs[1]) from error
    except AttributeError as error:  # a dependency has an unsuitable version; `from rollax import` would hide this
        raise ImportError(f"rollax.{name} could not be imported: {error}") from error
    finally:
        if collects:
            gc.enable()
    globals()[name] = value = getattr(module, name)
    return value


def _unknown(name: str, by_from: bool) -> Exception:
    """Returns the error for a name that is not public; `by_from`: the name comes from `from rollax import name`."""
    what = f"module {__name__!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(what)
    from rollax.core.other_names import public_name

    hint = public_name(name, _MODULE_OF)
    if hint is None:
        return AttributeError(what)
    # `from rollax import` would replace an AttributeError, and with it the hint; `hasattr` needs an AttributeError.
    return (ImportError if by_from else AttributeError)(f"{what}; in rollax: {hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
