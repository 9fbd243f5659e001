"""The API reference: `docs/api.md`, and a page for each of its sections with the docstrings of its names."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import rollax
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from website.pages import Page
from website.repository import REPOSITORY, read, slug

_SOURCE = "docs/api.md"
_ROW = re.compile(r"^\| \[`(\w+)`\]\(\.\./([\w/]+)\.py\) \|", re.MULTILINE)


def api_pages() -> Iterator[Page]:
    """The overview of all names, and a page for each section; the classes of algorithms are on their own pages."""
    content = read(_SOURCE)
    pages, shown = {}, {id(value) for value in _classes_of_algorithms().values()}
    for heading, text in _sections(content):
        directives = []
        for name, module in _ROW.findall(text):
            value = value_of(name, module)
            if id(value) not in shown:
                shown.add(id(value))
                directives.append(_directive(full_name(name, module), value))
        if directives:
            about = re.split(r"^(?:<!--|\|)", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
            body = "\n\n".join(directives)
            pages[f"api/{slug(heading)}"] = f"# {heading}\n\n{about}\n\n```{{eval-rst}}\n{body}\n```\n"
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    yield Page("api", _SOURCE, f"{_overview(content)}\n{toctree}\n")
    for name, text in pages.items():
        yield Page(name, _SOURCE, text)


def _sections(content: str) -> list[tuple[str, str]]:
    """Headings and texts: each `##`, and each `###` of the modules for algorithms of one's own."""
    parts = re.split(r"^###? (.*)$", content, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _overview(content: str) -> str:
    """docs/api.md with links from names to their documentation in the place of those to their source."""
    rows = _ROW.sub(lambda match: f"| {{py:obj}}`{match[1]} <{full_name(match[1], match[2])}>` |", content)
    rows = re.sub(
        r"^\| \[(\w+)\]\(\.\./[\w/]+\.py\) \| `(\w+)` \| `(\w+)` \| `(\w+)` \|",
        lambda match: (
            f"| [{match[1]}](algorithms.md#{slug(match[1])}) | "
            + " | ".join(f"{{py:obj}}`{name} <rollax.{name}>`" for name in match.groups()[1:])
            + " |"
        ),
        rows,
        flags=re.MULTILINE,
    )
    return re.sub(r"^<!-- .*? -->\n", "", rows, flags=re.DOTALL | re.MULTILINE)


def _classes_of_algorithms() -> dict[str, Any]:
    trainers = [get_trainer_class(name) for name in ALGORITHMS]
    return {each.__name__: each for one in trainers for each in (one, one.config_class, one.policy_class)}


def value_of(name: str, module: str) -> Any:
    """The object of a row: its name, and the file without its suffix."""
    return getattr(importlib.import_module(_dotted(module)), name)


def full_name(name: str, module: str) -> str:
    """The name under which it is documented: that of the public name in `rollax`, or that in its module."""
    public = vars(rollax)["_MODULE_OF"]
    dotted = _dotted(module)
    return (
        f"rollax.{name}" if name in public and value_of(name, module) is getattr(rollax, name) else f"{dotted}.{name}"
    )


def _dotted(module: str) -> str:
    return module.removesuffix("/__init__").replace("/", ".")


def _directive(name: str, value: Any) -> str:
    if not inspect.isclass(value):
        return f".. autofunction:: {name}"
    if issubclass(value, BaseException):
        return f".. autoexception:: {name}"
    if issubclass(value, BaseModel):  # its fields are listed by `website.docstrings`
        return f".. autoclass:: {name}\n   :show-inheritance:"
    elsewhere = [base.__name__ for base in value.__mro__[1:] if not _belongs_to(base)]
    options = [":members:", f":inherited-members: {','.join(elsewhere)}", ":show-inheritance:"]
    return "\n   ".join([f".. autoclass:: {name}", *options])


def _belongs_to(base: type) -> bool:
    """Whether the members of a base class are shown with its subclasses: it is of rollax and has no entry itself."""
    return base.__module__.startswith("rollax.") and f"{base.__module__}.{base.__qualname__}" not in documented()


@cache
def documented() -> dict[str, str]:
    """`module.name` of the definition -> the name under which it is documented."""
    found: dict[str, str] = {}
    for name, module in _ROW.findall(read(_SOURCE)):
        value = value_of(name, module)
        found.setdefault(f"{value.__module__}.{value.__qualname__}", full_name(name, module))
    for name, value in _classes_of_algorithms().items():
        found[f"{value.__module__}.{name}"] = f"rollax.{name}"
    return found


@cache
def source_files() -> frozenset[str]:
    """The files with the source of what is documented, and of the base classes whose members are shown with it."""
    values = [value_of(name, module) for name, module in _ROW.findall(read(_SOURCE))]
    values += _classes_of_algorithms().values()
    modules = {value.__module__ for value in values}
    modules |= {
        base.__module__ for value in values if inspect.isclass(value) for base in value.__mro__ if _belongs_to(base)
    }
    return frozenset(file_of(module) for module in modules)


def file_of(module: str) -> str:
    """The path of a module's file from the root of the repository."""
    return str(Path(str(sys.modules[module].__file__)).relative_to(REPOSITORY))


def without_docstring() -> list[str]:
    """The public names that have no docstring of their own."""
    named = {name: getattr(rollax, name) for name in vars(rollax)["_MODULE_OF"]}
    named |= {full_name(name, module): value_of(name, module) for name, module in _ROW.findall(read(_SOURCE))}
    return sorted(name for name, value in named.items() if not vars(value).get("__doc__", value.__doc__))
