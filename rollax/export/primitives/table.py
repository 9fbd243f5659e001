"""`CONVERTERS`: the name of a JAX primitive -> the function that adds its nodes to a graph."""

from __future__ import annotations

from rollax.export.graph import Graph, Value
from rollax.export.inlining import Equation
from rollax.export.primitives.elementwise import ELEMENTWISE, Converter, refuse
from rollax.export.primitives.shapes import SHAPES
from rollax.export.primitives.sums import SUMS

CONVERTERS: dict[str, Converter] = {**ELEMENTWISE, **SHAPES, **SUMS}


def convert(graph: Graph, equation: Equation, inputs: list[Value]) -> list[Value]:
    """Adds the nodes of an equation and returns its results; raises PolicyError for a primitive without a converter."""
    if equation.primitive not in CONVERTERS:
        raise refuse(equation)
    return CONVERTERS[equation.primitive](graph, equation, inputs)
