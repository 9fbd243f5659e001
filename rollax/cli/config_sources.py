"""Algorithms and config keys, read from the sources of the library.

Importing the configs imports NumPy, Gymnasium and Pydantic, and importing all algorithms imports JAX, which takes
seconds. Completions run at each press of the Tab key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import rollax

_PACKAGE = Path(rollax.__file__).parent
_WITH_CONFIGS = ("algorithms/*.py", "config/*.py", "models/config.py", "offline/*.py", "search/*.py")
_WITH_ALGORITHMS = ("algorithms/registry.py", "*/__init__.py")
_GROUP = "FieldGroup"
"""The base of all classes with config keys."""
_PLAIN = re.compile(r"[\w.+-]+")


@dataclass
class Section:
    """A dict of config keys: the config itself, or a part of it such as `model`.

    Args:
        values: key -> its choices as YAML, or else its default; empty if the default is computed or there is none.
        parts: key -> the section that is the value of the key.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    parts: dict[str, Section] = field(default_factory=dict)

    def all_keys(self) -> Iterator[str]:
        """Yields all keys, also those of the parts, without the name of the part."""
        yield from self.values
        for part in self.parts.values():
            yield from part.all_keys()


def algorithm_names() -> list[str]:
    """Returns the names of the algorithms of the library, in order."""
    trees = (tree for pattern in _WITH_ALGORITHMS for tree in _parsed(pattern, "Trainer"))
    tables = (node.value for tree in trees for node in tree.body if isinstance(node, ast.Assign))
    paths = (ast.literal_eval(table) for table in tables if isinstance(table, ast.Dict) and _is_constant(table))
    return sorted(name for table in paths for name, path in table.items() if path.endswith("Trainer"))


def config_section() -> Section:
    """Returns the keys of the configs of all algorithms together."""
    trees = [tree for pattern in _WITH_CONFIGS for tree in _parsed(pattern, "Field")]
    types = {name: value for tree in trees for name, value in _named_types(tree)}
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    return _Reader(classes, types).section_of_configs()


def _parsed(pattern: str, containing: str) -> Iterator[ast.Module]:
    for file in sorted(_PACKAGE.glob(pattern)):
        source = file.read_text(encoding="utf-8")
        if containing in source:
            yield ast.parse(source)


def _is_constant(table: ast.Dict) -> bool:
    return all(isinstance(node, ast.Constant) for node in (*table.keys, *table.values))


def _named_types(tree: ast.Module) -> Iterator[tuple[str, ast.Subscript]]:
    """Yields the types that a module names by `Name = Literal[...]` or `Name = Annotated[...]`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            yield ast.unparse(node.targets[0]), node.value


class _Reader:
    """Reads the fields of classes, which refer to classes and types by name."""

    def __init__(self, classes: dict[str, ast.ClassDef], types: dict[str, ast.Subscript]) -> None:
        self._classes, self._types = classes, types
        self._fields = {name: list(self._fields_of(node)) for name, node in classes.items()}

    def section_of_configs(self) -> Section:
        """Returns the keys of all groups of fields, without the keys of parts."""
        groups = {name for name in self._classes if _GROUP in self._with_bases(name)}
        named = (_parts_in(one.annotation) for name in groups for one in self._fields[name])
        parts = {base for names in named for name in names for base in self._with_bases(name)}
        return self._section(groups - parts)

    def _section(self, classes: Iterable[str]) -> Section:
        found = Section()
        for one in (one for name in sorted(classes) for one in self._fields[name]):
            key = ast.unparse(one.target).rstrip("_")  # lambda_ is the key `lambda`
            values = found.values.setdefault(key, [])
            values += [value for value in self._values(one) if value not in values]
            for part in _parts_in(one.annotation) & self._classes.keys():
                found.parts[key] = self._section(self._with_bases(part))
        return found

    def _with_bases(self, name: str) -> set[str]:
        """Returns the names of a class and of its bases, as far as their sources are read."""
        if name not in self._classes:
            return set()
        bases = [base.id for base in self._classes[name].bases if isinstance(base, ast.Name)]
        return {name, *(found for base in bases for found in self._with_bases(base))}

    def _fields_of(self, node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
        """Yields the fields `name: type = Field(...)` and `name: Type = ...`, where `Type` is an annotated Field."""
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and one.value is not None:
                annotation = self._types.get(ast.unparse(one.annotation))
                if _is_field(one.value) or (annotation is not None and any(map(_is_field, ast.walk(annotation)))):
                    yield one

    def _values(self, one: ast.AnnAssign) -> list[str]:
        """The choices of a field, else its default."""
        nodes = list(ast.walk(one.annotation))
        kinds = [self._types.get(node.id, node) if isinstance(node, ast.Name) else node for node in nodes]
        values: list[str | None] = []
        for kind in kinds:
            if isinstance(kind, ast.Name) and kind.id == "bool":
                values += ["true", "false"]
            elif isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Literal":
                values += [_as_yaml(node) for node in ast.walk(kind.slice) if isinstance(node, ast.Constant)]
        if values:
            values += [_as_yaml(node) for node in nodes if isinstance(node, ast.Constant) and node.value is None]
        elif isinstance(one.value, ast.Call):
            values += [_as_yaml(keyword.value) for keyword in one.value.keywords if keyword.arg == "default"]
        elif one.value is not None:
            values.append(_as_yaml(one.value))
        return list(dict.fromkeys(text for text in values if text is not None))


def _is_field(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field"


def _parts_in(annotation: ast.expr) -> set[str]:
    """The names in a type such as `ModelConfig | None`; none in a type such as a tuple of dicts."""
    if isinstance(annotation, ast.BinOp):
        return _parts_in(annotation.left) | _parts_in(annotation.right)
    return {annotation.id} if isinstance(annotation, ast.Name) else set()


def _as_yaml(node: ast.AST) -> str | None:
    """The value of an expression as YAML; None if it is not constant, or needs quotation marks."""
    if isinstance(node, ast.Tuple):
        parts = [_as_yaml(part) for part in node.elts]
        return None if None in parts else f"[{','.join(map(str, parts))}]"
    if not isinstance(node, ast.Constant):
        return None
    if node.value is None or isinstance(node.value, bool):
        return {None: "null", True: "true", False: "false"}[node.value]
    return str(node.value) if _PLAIN.fullmatch(str(node.value)) else None
