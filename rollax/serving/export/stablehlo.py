"""`policy_to_stablehlo`: a policy as StableHLO, which JAX, IREE and other compilers of OpenXLA read."""

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
    """Returns the policy's greedy actions as a serialized `jax.export.Exported`, for any number of rows.

    It takes and returns a dict of arrays, named as in docs/export.md; 32-bit types replace 64-bit types.

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
