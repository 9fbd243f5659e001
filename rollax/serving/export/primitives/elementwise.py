"""Primitives that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.errors import PolicyError
from rollax.serving.export.graph import Graph, Value
from rollax.serving.export.inlining import Equation

Converter = Callable[[Graph, Equation, list[Value]], list[Value]]
_BOOL = np.dtype(bool)

_SAME_NAMES = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("neg", "round", "sign", "sin", "sinh", "sqrt", "tan", "tanh"),
)
_UNARY = {**{name: name.capitalize() for name in _SAME_NAMES}, "logistic": "Sigmoid"}
_BINARY = {name: name.capitalize() for name in ("add", "sub", "mul", "div", "pow", "max", "min")} | {"add_any": "Add"}
_COMPARED = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}


def refuse(equation: Equation, what: str = "") -> PolicyError:
    """The error for a primitive that cannot be converted to ONNX; `what` names the variant that cannot."""
    shapes = ", ".join(f"{operand.dtype}{list(operand.shape)}" for operand in equation.inputs)
    return PolicyError(
        "The model uses an operation that the conversion to ONNX does not know.",
        f"primitive {equation.primitive!r}" + (f", {what}" if what else ""),
        f"operands {shapes}",
        expected="matrix products, convolutions, elementwise functions, reductions, slices and table look-ups",
    ).fix("express it by other operations in the part of the model that acts, or export it with to='stablehlo'")


def combined(graph: Graph, op: str, *values: Value, dtype: Any = None, **attributes: Any) -> Value:
    """A node whose operands are broadcast against each other."""
    rank = max(len(value.shape) for value in values)
    shapes = [(1,) * (rank - len(value.shape)) + value.shape for value in values]
    fulls = [(1,) * (rank - len(value.full)) + value.full for value in values]
    name = graph.node(op, *(value.name for value in values), **attributes)
    result = values[-1].dtype if dtype is None else np.dtype(dtype)
    return Value(name, result, tuple(map(_longest, *shapes)), tuple(map(_longest, *fulls)))


def scalar(graph: Graph, number: float, like: Value) -> Value:
    """A number in the type of a value."""
    return graph.constant(np.array(number, like.dtype))


def _longest(*sizes: Any) -> Any:
    return next((size for size in sizes if size != 1), 1)


def _unary(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    if equation.primitive == "round" and int(equation.params["rounding_method"]) != 1:
        raise refuse(equation, "rounding half away from zero")
    value = graph.computable(inputs[0])
    return [graph.cast(combined(graph, _UNARY[equation.primitive], value), inputs[0].dtype)]


def _binary(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    left, right = map(graph.computable, inputs)
    result = combined(graph, _BINARY[equation.primitive], left, graph.cast(right, left.dtype))
    return [graph.cast(result, inputs[0].dtype)]


def _compared(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    left, right = map(graph.computable, inputs)
    if equation.primitive == "ne":
        return [combined(graph, "Not", combined(graph, "Equal", left, right, dtype=bool))]
    return [combined(graph, _COMPARED[equation.primitive], left, right, dtype=bool)]


def _logical(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    if any(value.dtype != _BOOL for value in inputs):
        raise refuse(equation, f"bits of {inputs[0].dtype}")
    return [combined(graph, "Not" if equation.primitive == "not" else _LOGICAL[equation.primitive], *inputs)]


def chosen(graph: Graph, condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition is true, otherwise `no`."""
    where = combined(graph, "Where", condition, graph.computable(yes), graph.computable(no))
    return graph.cast(where, yes.dtype)


def _select(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    which, *cases = inputs
    if which.dtype == _BOOL:
        return [chosen(graph, which, cases[-1], cases[0])]
    result, which = cases[0], graph.computable(which)
    for number, case in enumerate(cases[1:], start=1):
        here = combined(graph, "Equal", which, scalar(graph, number, which), dtype=bool)
        result = chosen(graph, here, case, result)
    return [result]


def _clamp(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    low, value, high = map(graph.computable, inputs)
    return [graph.cast(combined(graph, "Min", combined(graph, "Max", value, low), high), inputs[1].dtype)]


def _converted(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, dtype = inputs[0], np.dtype(equation.params["new_dtype"])
    number = graph.computable(value)
    if number.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4:
        # For numbers outside the range of an integer type, JAX returns the bound, runtimes the last bits.
        limits = np.iinfo(dtype)
        value = combined(graph, "Max", number, scalar(graph, limits.min, number))
        value = combined(graph, "Min", value, scalar(graph, limits.max, number))
    return [graph.cast(value, dtype)]


def _same(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    return inputs


def _integer_pow(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, power = graph.computable(inputs[0]), equation.params["y"]
    if 2 <= power <= 4:
        square = combined(graph, "Mul", value, value)
        result = square if power == 2 else combined(graph, "Mul", square, value if power == 3 else square)
    else:
        result = combined(graph, "Pow", value, scalar(graph, power, value))
    return [graph.cast(result, inputs[0].dtype)]


def _is_finite(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value = graph.computable(inputs[0])
    odd = combined(
        graph, "Or", combined(graph, "IsNaN", value, dtype=bool), combined(graph, "IsInf", value, dtype=bool)
    )
    return [combined(graph, "Not", odd)]


def _remainder(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    left, right = map(graph.computable, inputs)
    return [graph.cast(combined(graph, "Mod", left, right, fmod=1), inputs[0].dtype)]


def _by_formula(formula: Callable[[Graph, Value, Value], Value]) -> Converter:
    """The converter for a formula of a value and the number 1."""

    def convert(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
        value = graph.computable(inputs[0])
        return [graph.cast(formula(graph, value, scalar(graph, 1, value)), inputs[0].dtype)]

    return convert


ELEMENTWISE: dict[str, Converter] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys((*_COMPARED, "ne"), _compared),
    **dict.fromkeys((*_LOGICAL, "not"), _logical),
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "name"), _same),
    **dict.fromkeys(("reduce_precision", "sharding_constraint"), _same),
    "select_n": _select,
    "clamp": _clamp,
    "convert_element_type": _converted,
    "integer_pow": _integer_pow,
    "is_finite": _is_finite,
    "rem": _remainder,
    "square": _by_formula(lambda graph, x, one: combined(graph, "Mul", x, x)),
    "rsqrt": _by_formula(lambda graph, x, one: combined(graph, "Div", one, combined(graph, "Sqrt", x))),
    "expm1": _by_formula(lambda graph, x, one: combined(graph, "Sub", combined(graph, "Exp", x), one)),
    "log1p": _by_formula(lambda graph, x, one: combined(graph, "Log", combined(graph, "Add", x, one))),
    "erfc": _by_formula(lambda graph, x, one: combined(graph, "Sub", one, combined(graph, "Erf", x))),
    "exp2": _by_formula(
        lambda graph, x, one: combined(graph, "Exp", combined(graph, "Mul", x, scalar(graph, np.log(2), x)))
    ),
}
