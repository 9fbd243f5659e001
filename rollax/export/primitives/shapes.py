"""Primitives that move elements: shapes, slices, concatenation and look-ups by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.export.graph import Dim, Graph, Value, dims_of
from rollax.export.inlining import Equation
from rollax.export.primitives.elementwise import Converter, chosen, combined
from rollax.export.primitives.refusing import refuse

_LAST = np.iinfo(np.int64).max


def made(name: str, value: Value, shape: Any) -> Value:
    """A node's result of a full shape, in the type of a value."""
    dims = dims_of(shape)
    return Value(name, value.dtype, dims, dims)


def _broadcast(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, full = inputs[0], dims_of(equation.outputs[0].shape)
    shape: list[Dim] = [1] * len(full)
    for place, size in zip(equation.params["broadcast_dimensions"], value.shape, strict=True):
        shape[place] = size
    name = value.name if tuple(shape) == value.shape else graph.reshaped(value.name, shape)
    return [Value(name, value.dtype, tuple(shape), full)]


def _reshape(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, full = inputs[0], dims_of(equation.outputs[0].shape)
    if equation.params.get("dimensions") is not None:
        raise refuse(equation, "with an order of the dimensions")
    if len(value.shape) == 0 or all(size == 1 for size in value.shape):
        ones = (1,) * len(full)  # stays to be broadcast
        return [Value(value.name if value.shape == ones else graph.reshaped(value.name, ones), value.dtype, ones, full)]
    return [made(graph.reshaped(graph.full(value), full), value, full)]


def _transpose(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    order = list(equation.params["permutation"])
    name = graph.node("Transpose", graph.full(inputs[0]), perm=order)
    return [made(name, inputs[0], equation.outputs[0].shape)]


def _concatenate(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    name = graph.node("Concat", *map(graph.full, inputs), axis=equation.params["dimension"])
    return [made(name, inputs[0], equation.outputs[0].shape)]


def _slice(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, params = inputs[0], equation.params
    starts, limits = dims_of(params["start_indices"]), dims_of(params["limit_indices"])
    steps = params["strides"] or (1,) * len(starts)
    axes = [i for i, size in enumerate(value.full) if (starts[i], limits[i], steps[i]) != (0, size, 1)]
    name = graph.full(value)
    if axes:
        bounds = [graph.shape([ends[i] for i in axes]) for ends in (starts, limits)]
        name = graph.node("Slice", name, *bounds, graph.integers(axes), graph.integers([steps[i] for i in axes]))
    return [made(name, value, equation.outputs[0].shape)]


def _split(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    sizes = graph.integers(equation.params["sizes"])
    operands = [graph.full(inputs[0]), sizes]
    names = graph.nodes("Split", operands, len(equation.outputs), axis=equation.params["axis"])
    return [made(name, inputs[0], out.shape) for name, out in zip(names, equation.outputs, strict=True)]


def _pad(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, padding = map(graph.computable, inputs)
    before, after, inside = zip(*equation.params["padding_config"], strict=True)
    if any(inside):
        raise refuse(equation, "between the elements")
    value = graph.cast(value, np.int32) if value.dtype == bool else value
    pads = graph.integers([*before, *after])
    name = graph.node("Pad", graph.full(value), pads, graph.cast(padding, value.dtype).name)
    return [graph.cast(made(name, value, equation.outputs[0].shape), inputs[0].dtype)]


def _reverse(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    axes = list(equation.params["dimensions"])
    numbers = [[-1] * len(axes), [-_LAST] * len(axes), axes, [-1] * len(axes)]
    name = graph.node("Slice", graph.full(inputs[0]), *map(graph.integers, numbers))
    return [made(name, inputs[0], equation.outputs[0].shape)]


def _iota(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    full, axis = dims_of(equation.outputs[0].shape), equation.params["dimension"]
    size, dtype = full[axis], np.dtype(equation.params["dtype"])
    shape = [1] * len(full)
    if isinstance(size, int):
        shape[axis] = size
        constant = graph.constant(np.arange(size).astype(dtype).reshape(shape))
        return [Value(constant.name, dtype, tuple(shape), full)]
    scalars = [graph.constant(np.int64(0)).name, graph.reshaped(graph.dim(size), ()), graph.constant(np.int64(1)).name]
    shape[axis] = -1
    name = graph.node("Reshape", graph.node("Range", *scalars), graph.integers(shape))
    place = tuple(size if i == axis else 1 for i in range(len(full)))
    return [graph.cast(Value(name, np.dtype(np.int64), place, full), dtype)]


def _dynamic_slice(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, *starts = inputs
    sizes = dims_of(equation.params["slice_sizes"])
    axes = [i for i, size in enumerate(value.full) if sizes[i] != size]
    name = graph.full(value)
    for axis in axes:
        size, whole = sizes[axis], value.full[axis]
        if isinstance(size, str) or isinstance(whole, str):
            raise refuse(equation, "of rows")
        index = _within(graph, starts[axis], whole - size)
        start = graph.reshaped(index.name, (1,))
        end = graph.node("Add", start, graph.integers([size]))
        name = graph.node("Slice", name, start, end, graph.integers([axis]))
    return [made(name, value, equation.outputs[0].shape)]


def _within(graph: Graph, index: Value, last: int) -> Value:
    """Indices, clipped to [0, last]."""
    index = graph.cast(index, np.int64)
    low, high = graph.constant(np.int64(0)), graph.constant(np.int64(last))
    return combined(graph, "Min", combined(graph, "Max", index, low), high)


def _gather(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, numbers = inputs[0], equation.params["dimension_numbers"]
    sizes, full = dims_of(equation.params["slice_sizes"]), value.full
    axes, batched = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    if len(axes) != 1 or tuple(numbers.collapsed_slice_dims) != axes or isinstance(full[axes[0]], str):
        raise refuse(equation, f"by several indices: {numbers}")
    axis, indices = axes[0], inputs[1]
    last = int(full[axis]) - 1
    indices = made(graph.full(indices), indices, indices.full)
    clipped = _within(graph, indices, last)
    others = tuple(i for i in range(len(full)) if i != axis)
    if not batched and all(sizes[i] == full[i] for i in others):
        result = _taken(graph, equation, value, clipped, axis)
    elif batched == others and _in_same_order(numbers.start_indices_batching_dims, batched, indices):
        name = graph.node("GatherElements", graph.full(value), _without_last(graph, clipped, axis), axis=axis)
        result = made(name, value, equation.outputs[0].shape)
    else:
        raise refuse(equation, str(numbers))
    if "FILL" not in str(equation.params["mode"]) or (batched == () and numbers.offset_dims):
        return [result]
    return [_filled(graph, equation, result, indices, clipped)]


def _in_same_order(of_indices: Any, batched: tuple[int, ...], indices: Value) -> bool:
    """Whether the indices have the axes of the operand, those of the look-up instead of that of its table."""
    return tuple(of_indices) == batched and len(indices.full) in (len(batched) + 1, len(batched) + 2)


def _without_last(graph: Graph, indices: Value, axis: int) -> str:
    """The indices without the axis of index vectors; with one of length 1 in the place of the look-up, if missing."""
    dims = list(indices.full[:-1])
    if len(indices.full) == len(indices.full[:-1]) + 1 and len(dims) == axis:
        dims.insert(axis, 1)
    return graph.reshaped(indices.name, dims)


def _taken(graph: Graph, equation: Equation, value: Value, indices: Value, axis: int) -> Value:
    """Whole slices of a table at the indices."""
    rows = indices.full[:-1]
    name = graph.node("Gather", graph.full(value), graph.reshaped(indices.name, rows), axis=axis)
    # ONNX puts the axes of the indices where the axis of the table was, JAX where `offset_dims` leave places.
    offset = tuple(equation.params["dimension_numbers"].offset_dims)
    rank = len(value.full) - 1 + len(rows)
    places = [i for i in range(rank) if i not in offset]
    source = [*offset[:axis], *places, *offset[axis:]]  # axis of the result of each axis of the node
    order = [source.index(i) for i in range(rank)]
    if order != sorted(order):
        name = graph.node("Transpose", name, perm=order)
    return made(name, value, equation.outputs[0].shape)


def _filled(graph: Graph, equation: Equation, result: Value, indices: Value, clipped: Value) -> Value:
    """The result with the filling value where an index is out of range."""
    fill = equation.params["fill_value"]
    if fill is None:
        fill = np.nan if result.dtype.kind == "f" else np.iinfo(result.dtype).min if result.dtype.kind == "i" else 0
    inside = combined(graph, "Equal", graph.cast(indices, np.int64), clipped, dtype=bool)
    inside = made(graph.reshaped(inside.name, result.full), inside, result.full)
    return chosen(graph, inside, result, graph.constant(np.array(fill, result.dtype)))


SHAPES: dict[str, Converter] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "rev": _reverse,
    "iota": _iota,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}
