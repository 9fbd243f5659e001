"""`policy_to_onnx`: a policy as an ONNX model."""

from __future__ import annotations

import json

import jax

import rollax
from rollax.config.json_form import space_to_json
from rollax.errors import not_installed
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.export.inlining import Operand, Variable, inlined
from rollax.serving.export.policy_function import PolicyFunction


def policy_to_onnx(runner: PolicyRunner) -> bytes:
    """Returns an ONNX model (opset 15) of the policy's greedy actions, for any number of rows.

    Inputs and outputs are named as in `rollax docs export`; `metadata_props` has the spaces, the tensors and the id of
    the policy.

    Raises:
        ConfigError: the extra `export` is not installed.
        PolicyError: the policy or its model cannot be expressed in ONNX.
    """
    try:
        import onnx

        from rollax.serving.export.graph import ROWS, Graph, Value, dims_of
        from rollax.serving.export.primitives import convert
    except ImportError as error:
        raise not_installed("ONNX", error, where="export to ONNX", package="onnx", extra="export") from error
    function = PolicyFunction(runner)
    (rows,) = jax.export.symbolic_shape(ROWS)
    jaxpr, names, weights = function.traced(rows)
    graph = Graph()
    values: dict[Variable, Value] = {}

    def value_of(operand: Operand) -> Value:
        return values[operand] if isinstance(operand, Variable) else graph.constant(operand)

    variables = [Variable(atom.aval.shape, atom.aval.dtype) for atom in jaxpr.jaxpr.invars]
    for variable, name, weight in zip(variables, names, weights, strict=False):
        values[variable] = graph.constant(weight, f"weights/{name}")  # no input or output has such a name
    for variable, tensor in zip(variables[len(weights) :], function.inputs, strict=True):
        values[variable] = graph.input(tensor.name, tensor.dtype, (ROWS, *tensor.shape))
    with jax.enable_x64(True):
        equations, results = inlined(jaxpr, variables)
    for equation in equations:
        found = convert(graph, equation, [value_of(operand) for operand in equation.inputs])
        values.update(zip(equation.outputs, found, strict=True))
    outputs = {}
    for tensor, result in zip(function.outputs, results, strict=True):
        value = graph.cast(value_of(result), tensor.dtype)
        outputs[tensor.name] = Value(value.name, value.dtype, value.shape, dims_of((ROWS, *tensor.shape)))
    model = graph.model(outputs, name=f"policy {runner.policy.name}", producer=("rollax", rollax.__version__))
    onnx.helper.set_model_props(model, _properties(function))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _properties(function: PolicyFunction) -> dict[str, str]:
    policy = function.policy
    described = {
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
        "inputs": [tensor.to_json() for tensor in function.inputs],
        "outputs": [tensor.to_json() for tensor in function.outputs],
    }
    return {
        "policy_id": policy.name,
        "policy_class": policy.made_by.__name__,
        **{name: json.dumps(value, allow_nan=False) for name, value in described.items()},
    }
