"""Primitives that move elements: shapes, slices, concatenation and look-ups by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.serving.export.graph import Dim, Graph, Value, dims_of
from rollax.serving.export.inlining import Equation
from rollax.serving.export.primitives.elementwise import Converter, chosen, combined, refuse

_LAST = np.iinfo(np.int64).max


def made(name: str, value: Value, shape: Any) -> Value:
    """The result `name` of a node, with this full shape and the type of `value`."""
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
    if equation.primitive == "reshape" and equation.params["dimensions"] is not None:
        raise refuse(equation, "with an order of the dimensions")
    if len(value.shape) == 0 or all(size == 1 for size in value.shape):
        ones = (1,) * len(full)  # broadcast later
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


def _stack(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    axis = equation.params["axis"]
    parts = [graph.node("Unsqueeze", graph.full(value), graph.integers([axis])) for value in inputs]
    return [made(graph.node("Concat", *parts, axis=axis), inputs[0], equation.outputs[0].shape)]


def _unstack(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    axis, count = equation.params["axis"], len(equation.outputs)
    parts = graph.nodes("Split", [graph.full(inputs[0]), graph.integers([1] * count)], count, axis=axis)
    names = [graph.node("Squeeze", part, graph.integers([axis])) for part in parts]
    return [made(name, inputs[0], out.shape) for name, out in zip(names, equation.outputs, strict=True)]


def _tile(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    name = graph.node("Tile", graph.full(inputs[0]), graph.shape(dims_of(equation.params["reps"])))
    return [made(name, inputs[0], equation.outputs[0].shape)]


def _top(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    """The largest elements with their indices, or columns sorted by the first one."""
    sorts, axis = equation.primitive == "sort", equation.params.get("axis", equation.params.get("dimension"))
    if sorts and equation.params["num_keys"] != 1:
        raise refuse(equation, "by several keys")
    value = graph.computable(inputs[0])
    count = graph.dim(dims_of(inputs[0].full)[axis] if sorts else equation.params["k"])
    order = {"axis": axis, "largest": int(not sorts), "sorted": 1}
    best, places = graph.nodes("TopK", [graph.full(value), count], 2, **order)
    first, *others = equation.outputs
    largest = made(best, value, first.shape)
    if not sorts:
        return [largest, made(places, graph.constant(np.int64(0)), others[0].shape)]
    rows = [graph.node("GatherElements", graph.full(other), places, axis=axis) for other in inputs[1:]]
    return [largest, *(made(row, other, other.full) for row, other in zip(rows, inputs[1:], strict=True))]


def _dim(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    name = graph.reshaped(graph.dim(dims_of([equation.params["dim"]])[0]), ())
    return [Value(name, np.dtype(np.int64), (), ())]


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
    pads = graph.integers([*before, *after])
    name = graph.node("Pad", graph.full(value), pads, graph.cast(padding, value.dtype).name)
    return [made(name, value, equation.outputs[0].shape)]


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
    return [Value(name, np.dtype(np.int64), place, full)]


def _dynamic_slice(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, *starts = inputs
    return [_sliced(graph, equation, value, dict(enumerate(starts)))]


def _window(graph: Graph, equation: Equation, inputs: list[Value]) -> Value:
    """One slice of a table, at a single vector of start indices."""
    value, indices = inputs
    axes = equation.params["dimension_numbers"].start_index_map
    if len(axes) != 1:
        raise refuse(equation, "from several starts")
    if "FILL" in str(equation.params["mode"]):
        raise refuse(equation, "of a slice that may be out of range")
    return _sliced(graph, equation, value, {axes[0]: indices})


def _sliced(graph: Graph, equation: Equation, value: Value, starts: dict[int, Value]) -> Value:
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
    return made(name, value, equation.outputs[0].shape)


def _within(graph: Graph, index: Value, last: int) -> Value:
    """Indices, clipped to [0, last]."""
    index = graph.cast(index, np.int64)
    low, high = graph.constant(np.int64(0)), graph.constant(np.int64(last))
    return combined(graph, "Min", combined(graph, "Max", index, low), high)


def _gather(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, numbers = inputs[0], equation.params["dimension_numbers"]
    sizes, full = dims_of(equation.params["slice_sizes"]), value.full
    axes, batched = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    if numbers.collapsed_slice_dims == () and not batched and inputs[1].full == (len(axes),):
        return [_window(graph, equation, inputs)]
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
    if "FILL" not in str(equation.params["mode"]):
        return [result]
    return [_filled(graph, equation, result, indices, clipped)]


def _in_same_order(of_indices: Any, batched: tuple[int, ...], indices: Value) -> bool:
    """Whether the batch axes are at the same positions in indices and operand, as `GatherElements` requires."""
    return tuple(of_indices) == batched and len(indices.full) in (len(batched) + 1, len(batched) + 2)


def _without_last(graph: Graph, indices: Value, axis: int) -> str:
    """The indices without their last axis, the axis of index vectors; a missing look-up axis gets length 1."""
    dims = list(indices.full[:-1])
    if len(dims) == axis:
        dims.insert(axis, 1)
    return graph.reshaped(indices.name, dims)


def _taken(graph: Graph, equation: Equation, value: Value, indices: Value, axis: int) -> Value:
    """Whole slices of a table at the indices."""
    rows = indices.full[:-1]
    name = graph.node("Gather", graph.full(value), graph.reshaped(indices.name, rows), axis=axis)
    # ONNX puts the axes of the indices where the axis of the table was, JAX at positions not in `offset_dims`.
    offset = tuple(equation.params["dimension_numbers"].offset_dims)
    rank = len(value.full) - 1 + len(rows)
    places = [i for i in range(rank) if i not in offset]
    source = [*offset[:axis], *places, *offset[axis:]]  # [axis of the node] -> axis of the result
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
    offset = equation.params["dimension_numbers"].offset_dims  # the axes of whole slices, with one index for all
    dims = tuple(1 if axis in offset else size for axis, size in enumerate(result.full))
    inside = Value(graph.reshaped(inside.name, dims), inside.dtype, dims, result.full)
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
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "top_k": _top,
    "sort": _top,
    "dim_as_value": _dim,
    "pad": _pad,
    "rev": _reverse,
    "iota": _iota,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
}
