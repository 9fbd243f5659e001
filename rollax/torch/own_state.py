"""The state in the attributes of a `TorchPolicy` other than its model: modules, optimizers and tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollax.core.introspection import names_of_bases
from rollax.core.stored_values import read_array
from rollax.errors import CheckpointError
from rollax.torch.optimizers import optimizer_arrays, set_optimizer_arrays
from rollax.torch.policy_model import refuse_extra_state
from rollax.torch.weights import assign, extra_of, parameters_of, to_numpy

Arrays = Mapping[str, Mapping[str, np.ndarray]]
"""Attribute -> path inside the attribute -> array."""

_STATE = nn.Module | torch.optim.Optimizer | Tensor
_NO_STATE = type | FunctionType | ModuleType | NoneType | int | float | complex | str | bytes | np.ndarray | np.generic
_OPAQUE = frozenset({"rollax", "numpy", "gymnasium", "builtins", "functools"})
_DEPTH = 3


def own_arrays(policy: Any) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of all attributes with modules, optimizers or tensors, also inside dicts, lists and tuples.

    NumPy arrays, numbers and the attributes in `custom_state_attributes` are left out. Raises CheckpointError for
    modules, optimizers or tensors inside other objects, and PolicyError for a module with `get_extra_state`.
    """
    names, stored, found = _names(policy), dict.fromkeys(_stored(policy), _DEPTH + 1), {}
    for name, value in _attributes(policy):
        for path, part in _parts(value, ""):
            if isinstance(part, nn.Module):
                refuse_extra_state(part, f"policy {policy.name!r}, attribute {name!r}{path}")
        found[name] = _arrays(value, names)
        for _, part in _parts(value, ""):
            if not isinstance(part, _STATE) and _hides_state(part, stored, _DEPTH):
                what = "State would be lost: networks or tensors are inside an object that a checkpoint does not store."
                got = f"{type(part).__name__} ({type(part).__module__})"
                raise CheckpointError(what, f"{policy.label}, attribute {name!r}", got).expected(
                    "modules, optimizers or tensors of PyTorch, also in dicts, lists and tuples",
                    "make them attributes of the policy, and for a scheduler use the key `lr_schedule` or override "
                    "learning_rates(); or store them in get_state, restore them in set_state, and set "
                    f"custom_state_attributes = frozenset({{{name!r}}})",
                )
    return {name: arrays for name, arrays in found.items() if arrays}


def set_own_arrays(policy: Any, arrays: Arrays) -> None:
    """Restores what `own_arrays` of an equal policy returned, in place.

    Raises CheckpointError for other attributes, or other names or shapes of arrays.
    """
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, value in _attributes(policy):
        tensors[name] = {path: leaf for path, part in _parts(value, "") for path, leaf in _tensors(path, part)}
    optimizers = {
        name: {path: part for path, part in _parts(value, "") if isinstance(part, torch.optim.Optimizer)}
        for name, value in _attributes(policy)
    }
    for name in sorted({*arrays, *(name for name, found in tensors.items() if found)}):
        stored, own = arrays.get(name, {}), tensors.get(name, {})
        prefixes = tuple(f"{path}#" for path in optimizers.get(name, {}))
        got = {path: np.shape(a) for path, a in stored.items() if not (prefixes and path.startswith(prefixes))}
        expected = {path: tuple(tensor.shape) for path, tensor in own.items()}
        if got != expected:
            raise CheckpointError(
                f"The arrays in the attribute {name} differ from those of this policy.", policy.label, got
            ).expected(
                expected,
                "restore with the class that the checkpoint was made with, which creates all arrays of the attribute "
                "in its constructor",
            )
    parameters = {name: tensor for tensor, name in _names(policy).items()}
    for name, own in tensors.items():
        assign(own, arrays.get(name, {}))
        for path, optimizer in optimizers[name].items():
            prefix = f"{path}#"
            state = {p.removeprefix(prefix): a for p, a in arrays.get(name, {}).items() if p.startswith(prefix)}
            set_optimizer_arrays(optimizer, parameters, state, f"policy {policy.name!r}, attribute {name!r}")


def generator_state(state: Mapping[str, Any], where: str) -> Tensor:
    """The stored state of the policy's random stream; CheckpointError if it is not valid."""
    shape = tuple(torch.Generator().get_state().shape)
    return torch.from_numpy(np.array(read_array(state, "generator", where, shape=shape, dtype=np.uint8)))


def _attributes(policy: Any) -> Iterator[tuple[str, Any]]:
    apart = names_of_bases(type(policy), "custom_state_attributes")
    return ((name, value) for name, value in vars(policy).items() if name not in apart)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """`(path, part)` of all leaves of a value: modules, optimizers, tensors and other objects."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _parts(part, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from _parts(part, f"{path}[{place}]")
    else:
        yield path, value


def _stored(policy: Any) -> set[int]:
    """The ids of all stored objects, to which other objects may refer."""
    learner = policy.learner
    own = [part for value in vars(policy).values() for _, part in _parts(value, "") if isinstance(part, _STATE)]
    modules = [part for part in (learner.model, learner.tensors.target_model, *own) if isinstance(part, nn.Module)]
    parts = [part for module in modules for part in (*module.modules(), *module.parameters(), *module.buffers())]
    return {id(part) for part in (*own, *parts, learner.optimizer, policy.generator, policy)}


def _hides_state(value: Any, seen: dict[int, int], depth: int) -> bool:
    """Whether an object contains state that is not stored.

    Args:
        seen: id -> how deep an object has been searched; stored objects are not searched again.
    """
    if isinstance(value, _NO_STATE) or seen.get(id(value), 0) > depth:
        return False
    if isinstance(value, _STATE | torch.Generator):
        return True
    opaque = type(value).__module__.partition(".")[0] in _OPAQUE
    if not opaque and all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return True  # schedulers of PyTorch, and other libraries' modules
    seen[id(value)] = depth + 1
    contents: list[Any] = list(value) if isinstance(value, set | frozenset | deque) else []
    if isinstance(value, partial):
        contents += value.func, value.args, value.keywords
    elif isinstance(value, MethodType):
        contents.append(value.__self__)
    elif not opaque:
        contents.append(object.__getstate__(value))  # attributes, also in __slots__
    parts = [part for _, part in _parts(contents, "")]
    return any(_hides_state(part, seen, depth - 1) for part in parts if depth > 0 or isinstance(part, _STATE))


def _tensors(path: str, part: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(part, nn.Module):
        for name, tensor in {**parameters_of(part), **extra_of(part)}.items():
            yield f"{path}.{name}", tensor
    elif isinstance(part, Tensor):
        yield path, part


def _arrays(value: Any, names: Mapping[Tensor, str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for path, part in _parts(value, ""):
        if isinstance(part, torch.optim.Optimizer):
            arrays |= {f"{path}#{name}": state for name, state in optimizer_arrays(part, names).items()}
        else:
            arrays |= {name: to_numpy(tensor) for name, tensor in _tensors(path, part)}
    return arrays


def _names(policy: Any) -> dict[Tensor, str]:
    """Parameter -> name, of the model and of all modules in attributes, for the state of optimizers."""
    names: dict[Tensor, str] = {}
    for attribute, value in vars(policy).items():
        for path, part in _parts(value, attribute):
            if isinstance(part, nn.Module):
                names |= {parameter: f"{path}.{name}" for name, parameter in part.named_parameters()}
            elif isinstance(part, Tensor):
                names[part] = path
    return {**names, **{parameter: name for name, parameter in policy.learner.model.named_parameters()}}
