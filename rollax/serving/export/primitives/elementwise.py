"""Primitives that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.errors import PolicyError
from rollax.serving.export.graph import Graph, Value
from rollax.serving.export.inlining import Equation

Converter = Callable[[Graph, Equation, list[Value]], list[Value]]
"""Adds the nodes of an equation for its operands; `convert` casts the results to the types that JAX gives them."""

_BOOL = np.dtype(bool)

_SAME_NAMES = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "log"),
    *("neg", "sign", "sin", "sinh", "sqrt", "tan", "tanh"),
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


def _by_formula(formula: Callable[..., Value]) -> Converter:
    """The converter for a formula of the graph and of the operands, in types that runtimes compute with."""

    def converter(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
        return [formula(graph, *map(graph.computable, inputs))]

    return converter


def _by_node(op: str, **options: Any) -> Converter:
    """The converter for one node, whose operands get the type of the first."""

    def formula(graph: Graph, first: Value, *others: Value) -> Value:
        return combined(graph, op, first, *(graph.cast(other, first.dtype) for other in others), **options)

    return _by_formula(formula)


def _round(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    if int(equation.params["rounding_method"]) != 1:
        raise refuse(equation, "rounding half away from zero")
    return _by_node("Round")(graph, equation, inputs)


def _different(graph: Graph, left: Value, right: Value) -> Value:
    return combined(graph, "Not", combined(graph, "Equal", left, right, dtype=bool))


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


def _clamp(graph: Graph, low: Value, value: Value, high: Value) -> Value:
    return combined(graph, "Min", combined(graph, "Max", value, low), high)


def _converted(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, dtype = inputs[0], np.dtype(equation.params["new_dtype"])
    number = graph.computable(value)
    if number.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4:
        # For numbers outside the range of an integer type, JAX returns the bound, runtimes the last bits.
        limits = np.iinfo(dtype)
        value = combined(graph, "Max", number, scalar(graph, limits.min, number))
        value = combined(graph, "Min", value, scalar(graph, limits.max, number))
    return [value]


def _same(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    return inputs


def _integer_pow(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    value, power = graph.computable(inputs[0]), equation.params["y"]
    if not 2 <= power <= 4:
        return [combined(graph, "Pow", value, scalar(graph, power, value))]
    square = combined(graph, "Mul", value, value)
    return [square if power == 2 else combined(graph, "Mul", square, value if power == 3 else square)]


def _is_finite(graph: Graph, value: Value) -> Value:
    odd = (combined(graph, op, value, dtype=bool) for op in ("IsNaN", "IsInf"))
    return combined(graph, "Not", combined(graph, "Or", *odd))


def _one(graph: Graph, like: Value) -> Value:
    return scalar(graph, 1, like)


ELEMENTWISE: dict[str, Converter] = {
    **{name: _by_node(op) for name, op in (_UNARY | _BINARY).items()},
    **{name: _by_node(op, dtype=bool) for name, op in _COMPARED.items()},
    **dict.fromkeys((*_LOGICAL, "not"), _logical),
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier", "device_put", "name"), _same),
    **dict.fromkeys(("reduce_precision", "sharding_constraint"), _same),
    "round": _round,
    "ne": _by_formula(_different),
    "select_n": _select,
    "clamp": _by_formula(_clamp),
    "convert_element_type": _converted,
    "integer_pow": _integer_pow,
    "is_finite": _by_formula(_is_finite),
    "rem": _by_node("Mod", fmod=1),
    "square": _by_formula(lambda graph, x: combined(graph, "Mul", x, x)),
    "rsqrt": _by_formula(lambda graph, x: combined(graph, "Div", _one(graph, x), combined(graph, "Sqrt", x))),
    "expm1": _by_formula(lambda graph, x: combined(graph, "Sub", combined(graph, "Exp", x), _one(graph, x))),
    "log1p": _by_formula(lambda graph, x: combined(graph, "Log", combined(graph, "Add", x, _one(graph, x)))),
    "erfc": _by_formula(lambda graph, x: combined(graph, "Sub", _one(graph, x), combined(graph, "Erf", x))),
    "exp2": _by_formula(
        lambda graph, x: combined(graph, "Exp", combined(graph, "Mul", x, scalar(graph, np.log(2), x)))
    ),
}
