"""A jaxpr as a flat list of equations: calls inlined, loops of known length unrolled, unused equations left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from rollax.errors import PolicyError

_CALLS = {  # primitive -> the parameter with the called jaxpr
    **dict.fromkeys(("jit", "pjit", "remat", "remat2", "checkpoint", "composite"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
}
_LONGEST_LOOP = 256


class Variable:
    """A result of an equation; compared by identity."""

    def __init__(self, shape: tuple[Any, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


Operand = Variable | np.ndarray
"""A variable, or a constant."""


@dataclass(frozen=True)
class Equation:
    """One primitive: its name as in a jaxpr, operands, results and parameters."""

    primitive: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Variable, ...]
    params: Mapping[str, Any]


def inlined(closed: Any, inputs: Sequence[Operand]) -> tuple[list[Equation], list[Operand]]:
    """`(equations, results)` of a closed jaxpr for its inputs; each equation only reads results of earlier equations.

    Raises PolicyError for a loop of unknown length, or of more than 256 steps.
    """
    equations: list[Equation] = []
    results = _inline(closed.jaxpr, closed.consts, inputs, equations)
    return _needed(equations, results), results


def _inline(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Operand], into: list[Equation]) -> list[Operand]:
    known: dict[Any, Operand] = dict(zip(jaxpr.constvars, map(_constant, consts), strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def operand(atom: Any) -> Operand:
        aval: Any = atom.aval
        return np.asarray(atom.val, aval.dtype) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = tuple(map(operand, equation.invars))
        known.update(zip(equation.outvars, _results(equation, operands, into), strict=True))
    return [operand(atom) for atom in jaxpr.outvars]


def _results(equation: Any, operands: tuple[Operand, ...], into: list[Equation]) -> Sequence[Operand]:
    name, params = equation.primitive.name, equation.params
    if name in _CALLS:
        return _called(params[_CALLS[name]], operands, into)
    if name == "scan":
        return _called(_unrolled(equation), operands, into)
    if name == "cond":
        index, *rest = operands
        branches = [_called(branch, rest, into) for branch in params["branches"]]
        results = tuple(Variable(out.aval.shape, out.aval.dtype) for out in equation.outvars)
        into += [
            Equation("select_n", (index, *cases), (result,), {})
            for result, *cases in zip(results, *branches, strict=True)
        ]
        return results
    results = tuple(Variable(out.aval.shape, getattr(out.aval, "dtype", None)) for out in equation.outvars)
    into.append(Equation(name, operands, results, params))
    return results


def _called(jaxpr: Any, operands: Sequence[Operand], into: list[Equation]) -> list[Operand]:
    return _inline(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()), operands, into)


def _unrolled(equation: Any) -> Any:
    """The closed jaxpr of a scan without the loop."""
    params = equation.params
    length, jaxpr = params["length"], params["jaxpr"]
    # Versions of JAX name the counts of a scan differently. A column (in `xs` or `ys`) has one axis less in the loop.
    columns_in, columns_out = (
        sum(outside.aval.shape != inside.shape for outside, inside in zip(variables, avals, strict=True))
        for variables, avals in ((equation.invars, jaxpr.in_avals), (equation.outvars, jaxpr.out_avals))
    )
    carried = len(equation.outvars) - columns_out
    consts = len(equation.invars) - columns_in - carried
    if not isinstance(length, int) or length > _LONGEST_LOOP:
        got, expected = f"{length} steps", f"at most {_LONGEST_LOOP} steps, whatever the number of observations"
        raise PolicyError(
            "The model has a loop that is too long to unroll, or whose length is unknown.", "primitive 'scan'", got
        ).expected(expected, "loop over fewer steps, and over a fixed number of them, when the model acts")
    body = core.jaxpr_as_fun(jaxpr)

    def unrolled(*operands: Any) -> list[Any]:
        fixed, carry, columns = operands[:consts], operands[consts : consts + carried], operands[consts + carried :]
        steps = []
        for step in range(length - 1, -1, -1) if params["reverse"] else range(length):
            row = [lax.index_in_dim(column, step, keepdims=False) for column in columns]
            results = body(*fixed, *carry, *row)
            carry = results[:carried]
            steps.append(results[carried:])
        steps = steps[::-1] if params["reverse"] else steps
        return [*carry, *(jnp.stack(parts) for parts in zip(*steps, strict=True))]

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    return jax.make_jaxpr(unrolled)(*shapes)


def _constant(value: Any) -> Operand:
    """A constant of a jaxpr; a constant that NumPy cannot hold, such as a random key, becomes an undefined variable."""
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
        return Variable(value.shape, value.dtype)
    return np.asarray(value)


def _needed(equations: list[Equation], results: Sequence[Operand]) -> list[Equation]:
    wanted = {result for result in results if isinstance(result, Variable)}
    kept = []
    for equation in reversed(equations):
        if not wanted.isdisjoint(equation.outputs):
            wanted.update(operand for operand in equation.inputs if isinstance(operand, Variable))
            kept.append(equation)
    return kept[::-1]
