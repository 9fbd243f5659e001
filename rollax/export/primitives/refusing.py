"""The error for operations that ONNX does not have."""

from __future__ import annotations

from rollax.errors import PolicyError
from rollax.export.inlining import Equation


def refuse(equation: Equation, what: str = "") -> PolicyError:
    """The error for a primitive, or for a kind of it."""
    shapes = ", ".join(f"{operand.dtype}{list(operand.shape)}" for operand in equation.inputs)
    return PolicyError(
        "The model uses an operation that the conversion to ONNX does not know.",
        where=f"primitive {equation.primitive!r}" + (f", {what}" if what else ""),
        got=f"operands {shapes}",
        expected="matrix products, convolutions, elementwise functions, reductions, slices and table look-ups",
        fix="express it by other operations in the part of the model that acts, or export it with to='stablehlo'",
    )
