"""The state in a policy's attributes other than its main model: networks, optimizer states and JAX arrays."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from rollax.core.introspection import names_of_bases
from rollax.errors import CheckpointError
from rollax.policy.split_model import arrays_in, flat, is_node, restored

Arrays = Mapping[str, Mapping[str, np.ndarray]]
"""Attribute -> path in the attribute -> array."""

_NEVER = frozenset({"observation_space", "action_space", "config"})
_OPAQUE = frozenset({"rollax", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "builtins", "functools"})
_NO_INSTANCES = type | FunctionType | MethodType | ModuleType
_DEPTH = 3


def own_arrays(policy: Any) -> dict[str, dict[str, np.ndarray]]:
    """Returns the arrays of all attributes with nnx modules, optimizers, variables or JAX arrays, also inside pytrees.

    NumPy arrays, numbers and the attributes in `custom_state_attributes` are left out. Raises CheckpointError if
    modules or arrays are inside another object, which a checkpoint does not store.
    """
    found = {}
    apart = _NEVER | names_of_bases(type(policy), "custom_state_attributes")
    for name, value in vars(policy).items():
        if name in apart:
            continue
        if arrays := arrays_in(value):
            found[name] = arrays
        for _, leaf in flat(value):
            if not _is_state(leaf) and _hides_state(leaf, _DEPTH):
                raise CheckpointError(
                    "State would be lost: networks or arrays are inside an object that a checkpoint does not store.",
                    where=f"{policy.label}, attribute {name!r}",
                    got=f"{type(leaf).__name__} ({type(leaf).__module__})",
                    expected="nnx modules, optimizers, optax states or JAX arrays, also in dicts, lists and tuples",
                    fix="make them attributes of the policy; or store them in get_state, restore them in set_state and "
                    f"name the attribute: custom_state_attributes = frozenset({{{name!r}}})",
                )
    return found


def set_own_arrays(policy: Any, arrays: Arrays) -> None:
    """Restores what `own_arrays` of an equal policy returned; modules are updated in place.

    Raises CheckpointError, without a change, if the attributes, or the names or shapes of their arrays, differ.
    """
    own = own_arrays(policy)
    _check(policy, "The attributes with state", sorted(arrays), sorted(own))
    for name, expected in own.items():
        got = {path: np.shape(array) for path, array in sorted(arrays[name].items())}
        shapes = {path: array.shape for path, array in sorted(expected.items())}
        _check(policy, f"The arrays in the attribute {name}", got, shapes)
    for name in own:
        setattr(policy, name, restored(getattr(policy, name), arrays[name]))


def _is_state(leaf: Any) -> bool:
    return is_node(leaf) or isinstance(leaf, jax.Array)


def _hides_state(value: Any, depth: int) -> bool:
    """Whether an object that is not a pytree contains state."""
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return True  # PyTorch's modules and optimizers
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, _NO_INSTANCES) or type(value).__module__.partition(".")[0] in _OPAQUE:
        return False
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    leaves = [leaf for part in parts for _, leaf in flat(part)]
    return any(map(_is_state, leaves)) or (depth > 0 and any(_hides_state(leaf, depth - 1) for leaf in leaves))


def _check(policy: Any, what: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise CheckpointError(f"{what} differ from those of this policy.", policy.label, got, expected=expected).fix(
            "restore with the class that the checkpoint was made with; an attribute with state must exist, with "
            "all its arrays, when the policy is created"
        )
