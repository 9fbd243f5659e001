"""`export_policy`: a trained policy as a file for other runtimes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Literal, get_args

import jax
from jax import export
from jax.extend import core

from rollax.algorithms.load_policy import load_policy
from rollax.batch import DEFAULT_POLICY
from rollax.core import atomic_files
from rollax.errors import ConfigError, RollaxError, not_installed
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.export.onnx_model import policy_to_onnx
from rollax.serving.export.policy_function import PolicyFunction

Format = Literal["onnx", "stablehlo"]
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")  # of StableHLO


def export_policy(
    policy: PolicyRunner | str | Path,
    to: Format = "onnx",
    *,
    out: str | Path,
    policy_id: str = DEFAULT_POLICY,
    **options: Any,
) -> Path:
    """Writes the greedy actions of a policy as one function to a file, and returns its absolute path.

    Observation filter, action masks, memory, and the scaling and clipping of actions are part of the function, which
    takes any number of observations. An existing file is replaced once the new one is complete.

    Args:
        policy: a checkpoint, or the result of `load_policy`.
        to: "onnx" for ONNX, "stablehlo" for a serialized `jax.export.Exported`.
        out: the file.
        policy_id: the policy in a checkpoint.
        options: further arguments of `load_policy` for a checkpoint, such as `custom_model`.
    Raises:
        CheckpointError: as `load_policy`.
        ConfigError: an unknown format, or the extra `export` is not installed.
        PolicyError: the policy is not in JAX, chooses actions in Python, or uses an operation that ONNX does not have.
        RollaxError: the file cannot be written.
    """
    if to not in get_args(Format):
        raise ConfigError.unknown("format", to, get_args(Format), "to")
    target = atomic_files.absolute(out, ConfigError)
    runner = policy if isinstance(policy, PolicyRunner) else load_policy(policy, policy_id, **options)
    _write(target, policy_to_onnx(runner) if to == "onnx" else policy_to_stablehlo(runner))
    return target


def policy_to_stablehlo(runner: PolicyRunner) -> bytes:
    """The policy's greedy actions as a serialized `jax.export.Exported`, for any number of rows.

    The function takes and returns a dict of arrays, named as in `rollax docs export`. 32-bit types replace 64-bit ones.

    Raises:
        ConfigError: the extra `export` is not installed.
        PolicyError: the policy cannot be exported.
    """
    function = PolicyFunction(runner, wide=False)
    (rows,) = export.symbolic_shape("N")
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


def _write(target: Path, content: bytes) -> None:
    temporary = atomic_files.temporary_for(target)
    try:
        atomic_files.make_parents(target.parent)
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        atomic_files.sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RollaxError.not_written("The policy", target, error) from error
