"""Primitives that combine elements: reductions, running sums, matrix products, convolutions and pooling."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from rollax.serving.export.graph import Graph, Value
from rollax.serving.export.inlining import Equation
from rollax.serving.export.primitives.elementwise import Converter, combined, refuse
from rollax.serving.export.primitives.shapes import made

_REDUCED = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}
_REDUCED |= {"reduce_or": "ReduceMax", "reduce_and": "ReduceMin"}  # of booleans


def _reduced(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    name, axes = equation.primitive, list(equation.params["axes"])
    if not axes:
        return inputs
    if inputs[0].dtype != np.bool_ and name in ("reduce_or", "reduce_and"):
        raise refuse(equation, "of integers")
    value = graph.computable(inputs[0])
    if name == "reduce_sum":
        result = graph.node("ReduceSum", graph.full(value), graph.integers(axes), keepdims=0)
    else:
        result = graph.node(_REDUCED[name], graph.full(value), axes=axes, keepdims=0)
    return [made(result, value, equation.outputs[0].shape)]


def _best(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value = graph.computable(inputs[0])
    op = "ArgMax" if equation.primitive == "argmax" else "ArgMin"
    name = graph.node(op, graph.full(value), axis=equation.params["axes"][0], keepdims=0)
    return [made(name, Value(name, np.dtype(np.int64), (), ()), equation.outputs[0].shape)]


def _running_sum(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, axis = graph.computable(inputs[0]), graph.constant(np.int64(equation.params["axis"])).name
    name = graph.node("CumSum", graph.full(value), axis, reverse=int(equation.params["reverse"]))
    return [made(name, value, equation.outputs[0].shape)]


def _product(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    summed, batched = equation.params["dimension_numbers"]
    left, right = map(graph.computable, inputs)
    right = graph.cast(right, left.dtype)
    ranks = len(left.full), len(right.full)
    plain = batched == ((), ()) and ranks[1] == 2 and ranks[0] >= 2 and tuple(summed[0]) == (ranks[0] - 1,)
    if plain and tuple(summed[1]) == (0,):
        name = graph.node("MatMul", graph.full(left), graph.full(right))
    else:
        letters = iter(string.ascii_lowercase)
        of_left, of_right = [next(letters) for _ in left.full], [next(letters) for _ in right.full]
        for pair in (summed, batched):
            for i, j in zip(*pair, strict=True):
                of_right[j] = of_left[i]
        free_left = [of_left[i] for i in range(ranks[0]) if i not in (*summed[0], *batched[0])]
        free_right = [of_right[j] for j in range(ranks[1]) if j not in (*summed[1], *batched[1])]
        result = [*(of_left[i] for i in batched[0]), *free_left, *free_right]
        text = f"{''.join(of_left)},{''.join(of_right)}->{''.join(result)}"
        name = graph.node("Einsum", graph.full(left), graph.full(right), equation=text)
    return [made(name, left, equation.outputs[0].shape)]


def _convolution(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    params, (image, kernel) = equation.params, map(graph.computable, inputs)
    numbers, rank = params["dimension_numbers"], len(image.full) - 2
    if params["batch_group_count"] != 1 or any(step != 1 for step in params["lhs_dilation"]):
        raise refuse(equation, "transposed")
    low, high = zip(*params["padding"], strict=True)
    name = graph.node(
        "Conv",
        _permuted(graph, graph.full(image), numbers.lhs_spec),
        _permuted(graph, graph.full(kernel), numbers.rhs_spec),
        strides=list(params["window_strides"]),
        pads=[*low, *high],
        dilations=list(params["rhs_dilation"]),
        group=params["feature_group_count"],
    )
    back = [numbers.out_spec.index(axis) for axis in range(rank + 2)]
    return [made(_permuted(graph, name, back), image, equation.outputs[0].shape)]


def _permuted(graph: Graph, name: str, order: Any) -> str:
    order = list(order)
    return name if order == sorted(order) else graph.node("Transpose", name, perm=order)


def _pooled(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    """Windows over the middle axes of [B, ..., channels] or the last axes of [B, channels, ...]."""
    params, value = equation.params, graph.computable(inputs[0])
    window, steps, padding = params["window_dimensions"], params["window_strides"], params["padding"]
    rank = len(window)
    middle = window[-1] == 1 and steps[-1] == 1
    axes = list(range(1, rank - 1)) if middle else list(range(2, rank))
    dilated = any(step != 1 for step in (*params["base_dilation"], *params["window_dilation"]))
    if not axes or dilated or any(window[i] != 1 or padding[i] != (0, 0) for i in range(rank) if i not in axes):
        raise refuse(equation, f"of the window {window}")
    order = [0, rank - 1, *axes] if middle else list(range(rank))
    low, high = zip(*(padding[i] for i in axes), strict=True)
    largest = equation.primitive == "reduce_window_max"
    name = graph.node(
        "MaxPool" if largest else "AveragePool",
        _permuted(graph, graph.full(value), order),
        kernel_shape=[window[i] for i in axes],
        strides=[steps[i] for i in axes],
        pads=[*low, *high],
        **({} if largest else {"count_include_pad": 1}),
    )
    result = made(_permuted(graph, name, [order.index(i) for i in range(rank)]), value, equation.outputs[0].shape)
    if not largest:
        result = combined(graph, "Mul", result, graph.constant(np.array(np.prod(window), value.dtype)))
    return [result]


SUMS: dict[str, Converter] = {
    **dict.fromkeys(("reduce_sum", *_REDUCED), _reduced),
    **dict.fromkeys(("argmax", "argmin"), _best),
    **dict.fromkeys(("reduce_window_max", "reduce_window_sum"), _pooled),
    "cumsum": _running_sum,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
}
