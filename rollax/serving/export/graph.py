"""`Graph`: builds an ONNX graph whose values are broadcast only if a node requires it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
"""The length of an axis; a string is an expression of the number of rows, such as `N` or `3*N`."""

ROWS = "N"
OPSET = 15  # also supported by game engines
_IR_VERSION = 8

# Most runtimes lack arithmetic of these types.
_COMPUTED_AS = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), np.dtype(np.int32)),
    "uint32": np.dtype(np.int64),
    "uint64": np.dtype(np.int64),
    "float16": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph, whose `shape` is broadcast to `full` if necessary."""

    name: str
    dtype: np.dtype
    shape: tuple[Dim, ...]
    full: tuple[Dim, ...]


def dims_of(shape: Sequence[Any]) -> tuple[Dim, ...]:
    """The dimensions of a traced shape."""
    return tuple(size if isinstance(size, str) else int(size) if _is_whole(size) else str(size) for size in shape)


class Graph:
    """Nodes, constants and inputs of an ONNX graph."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._known: dict[Any, str] = {}
        self._number = itertools.count()
        self._rows: tuple[str, int] | None = None

    def input(self, name: str, dtype: Any, shape: Sequence[Any]) -> Value:
        """An input of the model."""
        dims = dims_of(shape)
        self._inputs[name] = _described(name, np.dtype(dtype), dims)
        if self._rows is None and ROWS in dims:
            self._rows = name, dims.index(ROWS)
        return Value(name, np.dtype(dtype), dims, dims)

    def constant(self, array: Any, name: str | None = None) -> Value:
        """A constant, or weights with a name; equal small constants are stored once."""
        array = np.asarray(array)
        key = (array.dtype.str, array.shape, array.tobytes()) if name is None and array.size <= 64 else None
        if key in self._known:
            name = self._known[key]
        else:
            name = name or f"constant_{next(self._number)}"
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
            if key is not None:
                self._known[key] = name
        return Value(name, array.dtype, array.shape, array.shape)

    def integers(self, numbers: Sequence[int]) -> str:
        """The name of a constant vector of integers, such as a node's `axes`."""
        return self.constant(np.array(numbers, np.int64)).name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node and returns the name of its result; equal nodes are added once."""
        return self.nodes(op, inputs, 1, **attributes)[0]

    def nodes(self, op: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Adds a node with several results and returns their names."""
        key = (op, *inputs, outputs, repr(sorted(attributes.items())))
        if key not in self._known:
            place = next(self._number)
            names = [f"{op.lower()}_{place}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
            self._nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}_{place}", **attributes))
            self._known[key] = " ".join(names)
        return self._known[key].split(" ")

    def full(self, value: Value) -> str:
        """The name of a value with its full shape."""
        if value.shape == value.full:
            return value.name
        return self.node("Expand", value.name, self.shape(value.full))

    def cast(self, value: Value, dtype: Any) -> Value:
        """The value in another type."""
        dtype = np.dtype(dtype)
        if dtype == value.dtype:
            return value
        name = self.node("Cast", value.name, to=helper.np_dtype_to_tensor_dtype(dtype))
        return Value(name, dtype, value.shape, value.full)

    def computable(self, value: Value) -> Value:
        """The value in a type that runtimes compute with."""
        return self.cast(value, _COMPUTED_AS.get(value.dtype.name, value.dtype))

    def reshaped(self, name: str, dims: Sequence[Dim]) -> str:
        """A tensor in another shape."""
        unknown = [place for place, size in enumerate(dims) if isinstance(size, str)]
        if len(unknown) == 1 and 0 not in dims:
            return self.node("Reshape", name, self.integers([-1 if isinstance(d, str) else d for d in dims]))
        return self.node("Reshape", name, self.shape(dims))

    def shape(self, dims: Sequence[Dim]) -> str:
        """The name of a vector of dimensions, computed from the number of rows where necessary."""
        if all(isinstance(size, int) for size in dims):
            return self.integers([int(size) for size in dims])
        parts = [list(group) for _, group in itertools.groupby(dims, key=lambda size: isinstance(size, int))]
        names = []
        for part in parts:
            known = [size for size in part if isinstance(size, int)]
            names += [self.integers(known)] if known else [self.dim(size) for size in part]
        return names[0] if len(names) == 1 else self.node("Concat", *names, axis=0)

    def dim(self, size: Dim) -> str:
        """The name of a vector of length 1 that holds a dimension."""
        return self._of_expression(ast.parse(str(size).replace("^", "**"), mode="eval").body)

    def _of_expression(self, tree: ast.expr) -> str:
        binary = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}
        calls = {"max": "Max", "min": "Min", "floordiv": "Div", "mod": "Mod"}
        match tree:
            case ast.Constant(int(number)):
                return self.integers([number])
            case ast.Name():
                assert self._rows is not None  # every traced function has an input [N, ...]
                name, axis = self._rows
                return self.node("Gather", self.node("Shape", name), self.integers([axis]), axis=0)
            case ast.UnaryOp(ast.USub(), of):
                return self.node("Neg", self._of_expression(of))
            case ast.BinOp(left, operation, right) if type(operation) in binary:
                return self.node(binary[type(operation)], self._of_expression(left), self._of_expression(right))
            case ast.BinOp(left, ast.Pow(), ast.Constant(int(power))):
                return reduce(partial(self.node, "Mul"), [self._of_expression(left)] * power)
            case ast.Call(ast.Name(function), arguments) if function in calls:
                return self.node(calls[function], *map(self._of_expression, arguments))
        raise NotImplementedError(f"the dimension {ast.unparse(tree)}")

    def model(self, outputs: Mapping[str, Value], *, name: str, producer: tuple[str, str]) -> onnx.ModelProto:
        """The model whose outputs have the given names; unused nodes are left out."""
        for output, value in outputs.items():
            self._nodes.append(helper.make_node("Identity", [self.full(value)], [output], name=f"output {output}"))
        used, nodes = set(outputs), []
        for node in reversed(self._nodes):
            if not used.isdisjoint(node.output):
                used.update(node.input)
                nodes.append(node)
        graph = helper.make_graph(
            nodes[::-1],
            name,
            list(self._inputs.values()),
            [_described(output, value.dtype, value.full) for output, value in outputs.items()],
            [tensor for constant, tensor in self._constants.items() if constant in used],
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
        model.producer_name, model.producer_version = producer
        return model


def _is_whole(size: Any) -> bool:
    return isinstance(size, int | np.integer)


def _described(name: str, dtype: np.dtype, dims: Sequence[Dim]) -> onnx.ValueInfoProto:
    kind = TensorProto.BFLOAT16 if dtype == ml_dtypes.bfloat16 else helper.np_dtype_to_tensor_dtype(dtype)
    return helper.make_tensor_value_info(name, kind, list(dims))
