"""Plain values from YAML and JSON text: no code, and limits on size, depth and aliases."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 50
_MAX_NODES = 100_000


def read_yaml(path: Path) -> Any:
    """Returns the plain values of a YAML or JSON file of at most 1 MB.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError, ValueError: the content is not valid, or too large.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"more than {_MAX_BYTES} bytes")
    return parse_yaml(content.decode())


def parse_yaml(text: str) -> Any:
    """Returns the plain values of YAML text, where 3e-4 and -.5 are numbers, and 2001-12-31 and 16:00 are text.

    Raises:
        yaml.YAMLError: the text is not valid, is nested too deep, has too many nodes, or repeats a key.
        ValueError: a value is not valid, such as !!int x.
    """
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """A YAML loader without code, which refuses repeated keys, depth and alias bombs; see `parse_yaml`."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ComposerError(
                problem=f"nested more than {_MAX_DEPTH} deep", problem_mark=self.peek_event().start_mark
            )
        is_alias, before = self.check_event(yaml.AliasEvent), self._nodes
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(problem="an alias inside its own anchor")
        self._nodes = before + self._sizes[id(node)] if is_alias else self._nodes + 1
        self._sizes[id(node)] = self._nodes - before
        if self._nodes > _MAX_NODES:
            raise ComposerError(problem=f"more than {_MAX_NODES} nodes")
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        # In YAML 1.1, 16:00 is the number 960.
        if kind is yaml.ScalarNode and ":" in value:
            return self.DEFAULT_SCALAR_TAG
        return super().resolve(kind, value, implicit)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, IndexError, KeyError) as error:  # PyYAML's errors if text does not fit an explicit tag
            problem = f"the value does not fit its tag {node.tag!r}"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from error

    def construct_scalar(self, node: Any) -> Any:
        # JSON escapes a character beyond 16 bits, such as an emoji, as two code units.
        return super().construct_scalar(node).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise ConstructorError(problem=f"repeated key {key.value!r}", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


# PyYAML makes an object of a date: JSON, and so config.json and checkpoints, have none.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)
# PyYAML follows YAML 1.1, and reads 3e-4 and -.5 as strings.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.\d*)?[eE][-+]?\d+|\.\d+([eE][-+]?\d+)?)$"),
    list("-+0123456789."),
)
