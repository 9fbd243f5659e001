"""The conversion of JAX primitives: the name of each -> the function that adds its nodes to a graph."""

from __future__ import annotations

from rollax.serving.export.graph import Graph, Value
from rollax.serving.export.inlining import Equation
from rollax.serving.export.primitives.elementwise import ELEMENTWISE, Converter, refuse
from rollax.serving.export.primitives.shapes import SHAPES
from rollax.serving.export.primitives.sums import SUMS

CONVERTERS: dict[str, Converter] = {**ELEMENTWISE, **SHAPES, **SUMS}


def convert(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    """Adds the nodes of an equation and returns its results; raises PolicyError for a primitive without a converter."""
    if equation.primitive not in CONVERTERS:
        raise refuse(equation)
    results = CONVERTERS[equation.primitive](graph, equation, inputs)
    return [graph.cast(value, out.dtype) for value, out in zip(results, equation.outputs, strict=True)]
