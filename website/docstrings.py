"""Docstrings as reStructuredText: they are plain text with names in backticks, lists, and indented equations.

Their sections `Args:`, `Returns:` and `Raises:` are left to napoleon.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from docutils import nodes
from pydantic import BaseModel
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import rollax
from website.api_pages import documented, file_of, source_files
from website.links import source_page

_LOG = logging.getLogger(__name__)
_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):$")
_ITEM = re.compile(r"(?:-|\d+\.) ")
_SPECIAL = re.compile(r"([*|\\]|_(?!\w)|(?<=\W)_)")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _process_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("missing-reference", _find_public_name)
    app.connect("doctree-read", _mark_tables_of_keys)


def restructured(lines: list[str], module: str) -> Iterator[str]:
    """A docstring of `module` as reStructuredText."""
    in_section, in_list, in_equation = False, False, False
    for index, line in enumerate(lines):
        text = line.lstrip()
        indented = len(line) > len(text)
        if _SECTION.match(line):
            in_section, in_list, in_equation = True, False, False
            yield from ("", line)
            continue
        if not text:
            in_section, in_list, in_equation = in_section and _indented_after(lines, index), False, False
        elif not in_section and indented and not in_list:
            if not in_equation:
                yield from ("", ".. code-block:: text", "")
            in_equation = True
            yield f"    {text}"
            continue
        elif in_equation:
            in_equation = False
            yield ""
        if not in_section and text and not indented:
            if _ITEM.match(text) and not in_list:
                yield ""
            in_list = bool(_ITEM.match(text))
        yield line[: len(line) - len(text)] + _escaped(text, module)


def _indented_after(lines: list[str], index: int) -> bool:
    return next((line.startswith(" ") for line in lines[index:] if line.strip()), False)


def _escaped(text: str, module: str) -> str:
    """A line with names as references, code as literals, and no other markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # code that continues in the next line
        return _SPECIAL.sub(r"\\\1", text).replace("`", r"\`")
    return "".join(
        _code(part, module) if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def _code(text: str, module: str) -> str:
    """Code in backticks: a reference if it is the name of something documented, in its module or in `rollax`."""
    start, _, member = text.partition(".")
    value = getattr(sys.modules.get(module), start, None)
    name = documented().get(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}")
    if name is None and start in vars(rollax)["_MODULE_OF"]:
        name = f"rollax.{start}"
    if name is None or not text.replace(".", "").isidentifier():
        return f"``{text}``"
    return f":py:obj:`{text} <{name}{'.' * bool(member)}{member}>`"


def source_link(domain: str, info: dict[str, str]) -> str | None:
    """The page with the source of an object, from a page of the reference; browsers scroll to its first line."""
    value: Any = sys.modules.get(info["module"])
    for name in info["fullname"].split("."):
        value = inspect.getattr_static(value, name, None) or getattr(value, name, None)
    value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", None) or value))
    module = getattr(value, "__module__", None)
    if module not in sys.modules or not (inspect.isclass(value) or inspect.isfunction(value)):
        return None
    file = file_of(module) if module.startswith("rollax") else ""
    kind = "class" if inspect.isclass(value) else "def"
    start = quote(f"{kind} {value.__name__}", safe="")
    return f"../{source_page(file)}.html#:~:text={start}" if file in source_files() else None


def _process_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured(lines, _module_of(value))
    if inspect.isclass(value) and issubclass(value, BaseModel):
        lines += ["", *_own_fields(value)]


def _module_of(value: Any) -> str:
    return value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or ""


def _own_fields(config: type[BaseModel]) -> Iterator[str]:
    """A list of the fields that a config class adds to its bases."""
    for name, field in config.model_fields.items():
        if name in vars(config).get("__annotations__", {}):
            key = field.validation_alias if isinstance(field.validation_alias, str) else name
            yield f"- ``{key}`` = ``{field.default!r}``: {_escaped(field.description or '', config.__module__)}"


def _process_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    if inspect.isclass(value) and issubclass(value, BaseModel):
        return "(**keys)", None
    return _short(signature), _short(returns)


def _short(types: str | None) -> str | None:
    return types and types.replace("jaxlib._jax.", "")


def _skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Warns of public methods without a docstring, which autodoc would leave out silently."""
    of_rollax = inspect.isfunction(value) and value.__module__.startswith("rollax.")
    if skip and of_rollax and not name.startswith("_") and not inspect.getdoc(value):
        _LOG.warning("%s.%s has no docstring", value.__module__, value.__qualname__)
    return None


def _mark_tables_of_keys(app: Sphinx, document: nodes.document) -> None:
    """Gives tables of config keys a class, with which they are lists on narrow screens."""
    for table in document.findall(nodes.table):
        first = next(iter(table.findall(nodes.entry)), None)
        if first is not None and first.astext() == "key":
            table["classes"].append("keys")


def _find_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Resolves a reference to the place of a definition, such as a type, to the public name."""
    target = node.get("reftarget", "")
    start, _, member = target.rpartition(".")
    names = documented()
    public = names.get(target) or (f"{names[start]}.{member}" if start in names else None)
    if node.get("refdomain") != "py" or public in (None, target):
        return None
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
