"""`policy_to_stablehlo`: a policy as a serialized function of `jax.export`."""

from __future__ import annotations

from typing import Any

import jax
from jax import export
from jax.extend import core

from rollax.errors import not_installed
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.export.policy_function import PolicyFunction

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_ROWS = "N"


def policy_to_stablehlo(runner: PolicyRunner) -> bytes:
    """The policy's greedy actions as a serialized `jax.export.Exported`, for any number of rows.

    The function takes and returns a dict of arrays, named as in `rollax docs export`. 32-bit types replace 64-bit ones.

    Raises:
        ConfigError: the extra `export` is not installed.
        PolicyError: the policy cannot be exported.
    """
    function = PolicyFunction(runner, wide=False)
    (rows,) = export.symbolic_shape(_ROWS)
    jaxpr, _, weights = function.traced(rows)
    names = [tensor.name for tensor in function.inputs]

    def policy(inputs: dict[str, Any]) -> dict[str, Any]:
        results = core.jaxpr_as_fun(jaxpr)(*weights, *(inputs[name] for name in names))
        return {tensor.name: result for tensor, result in zip(function.outputs, results, strict=True)}

    exported = export.export(jax.jit(policy), platforms=_PLATFORMS)(
        dict(zip(names, function.arguments(rows), strict=True))
    )
    try:
        return bytes(exported.serialize())
    except ImportError as error:
        raise not_installed(
            "StableHLO", error, where="export to StableHLO", package="flatbuffers", extra="export"
        ) from error
