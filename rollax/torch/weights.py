"""The tensors of models and optimizers by name, as NumPy copies for checkpoints and other processes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollax import trees
from rollax.errors import CheckpointError, PolicyError
from rollax.importing import path_of
from rollax.policy.update_plan import check_rates, part_of

_NUMBER = "()"


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> trained parameter; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def owners_of(model: nn.Module) -> dict[str, set[str]]:
    """Name of a trained parameter -> all attributes of the model that contain it."""
    names = {parameter: name for name, parameter in parameters_of(model).items()}
    owners: dict[str, set[str]] = {name: set() for name in names.values()}
    for alias, parameter in model.named_parameters(remove_duplicate=False):
        if parameter in names:
            owners[names[parameter]].add(part_of(alias))
    return owners


def parameter_groups(model: nn.Module, rates: Any, where: str) -> Any:
    """The trained parameters of the model of policy class `where`; in groups if there is a learning rate of each part.

    Raises PolicyError if there are none, or for one without a learning rate.
    """
    parameters = parameters_of(model)
    if not parameters:
        raise PolicyError(
            "The model has no parameters to train.",
            where=f"policy class {where}, make_model",
            got=f"{type(model).__name__}, without an nn.Parameter that requires a gradient",
            expected="a model with trained parameters",
            fix="keep the parameters in nn.Parameter, as layers such as nn.Linear do",
        )
    if not isinstance(rates, Mapping):
        return list(parameters.values())
    check_rates({part_of(name) for name in parameters}, rates, where)
    parts = {part: [p for name, p in parameters.items() if part_of(name) == part] for part in rates}
    return [{"params": found, "name": part} for part, found in parts.items() if found]


def extra_of(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor for the other tensors of the state dict: buffers, and parameters that are not trained."""
    stored = model.state_dict(keep_vars=True).keys()
    fixed = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {**fixed, **{name: buffer for name, buffer in model.named_buffers() if name in stored}}


def as_numpy(tensor: Tensor) -> np.ndarray:
    """An array, on the CPU without a copy; of bfloat16, which NumPy lacks, as float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return tensor.detach().cpu().numpy()


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy; of bfloat16 as float32."""
    return np.array(as_numpy(tensor))


def as_tensor(array: Any, device: torch.device | None = None) -> Tensor:
    """A tensor of an array or tensor, on the CPU without a copy, except for arrays that are read-only or reversed."""
    if isinstance(array, np.ndarray) and (not array.flags.writeable or min(array.strides, default=0) < 0):
        array = np.array(array, order="C")  # PyTorch has no such tensors
    return torch.as_tensor(array, device=device)


def to_tensors(tree: trees.Tree, device: torch.device) -> trees.Tree:
    """Columns as tensors on a device, without a copy on the CPU; float64 becomes float32, as in JAX."""

    def tensor(leaf: np.ndarray) -> Tensor:
        leaf = np.asarray(leaf)
        return as_tensor(leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, device)

    return trees.tree_map(tensor, tree)


@torch.no_grad()
def assign(tensors: Mapping[str, Tensor], arrays: Mapping[str, Any]) -> None:
    """Copies arrays of the same names and shapes into tensors."""
    for name, tensor in tensors.items():
        tensor.copy_(as_tensor(np.asarray(arrays[name])))


def check_optimizer(optimizer: Any, model: nn.Module, parts: Collection[str] | None) -> None:
    """Raises PolicyError unless it is an optimizer of the model's parameters, because others would not be saved.

    Also for groups of parameters that are none of `parts`, which have learning rates, or that set their own.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PolicyError(
            "make_optimizer did not return an optimizer.",
            where="make_optimizer",
            got=type(optimizer).__name__,
            expected="an optimizer of torch.optim",
            fix="return it: `return torch.optim.SGD(params, lr=0.0)`; its learning rate is set at each step",
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PolicyError(
            "The optimizer calls the loss itself, several times in each step.",
            where="make_optimizer",
            got=type(optimizer).__name__,
            expected="an optimizer whose step() takes the gradients as they are, such as Adam, SGD or RMSprop",
            fix="return such an optimizer, for example torch.optim.Adam(params, lr=0.0)",
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise PolicyError(
            "The optimizer accepts only sparse gradients.",
            where="make_optimizer",
            got=type(optimizer).__name__,
            expected="an optimizer of dense gradients, such as Adam, SGD or RMSprop",
            fix="return another one: `return torch.optim.Adam(params, lr=0.0)`",
        )
    own = set(model.parameters())  # also untrained ones, which have neither gradients nor state
    others = sum(parameter not in own for group in optimizer.param_groups for parameter in group["params"])
    if others:
        raise PolicyError(
            "The optimizer has parameters that are not the model's.",
            where="make_optimizer",
            got=f"{others} other parameters",
            expected=f"parameters of the model, a {type(model).__name__}",
            fix="make their module a part of the model: an attribute of the module that make_model returns",
        )
    fix = "let learning_rates() return {part: rate}, and give make_optimizer's `params` to the optimizer as they are"
    if parts is not None:
        names = [group.get("name") for group in optimizer.param_groups]
        if unknown := [name for name in names if name not in parts]:
            raise PolicyError(
                "Some parameter groups have no learning rate.",
                where="make_optimizer",
                got=f"groups named {unknown}",
                expected=f"groups with a `name` of {sorted(parts)}, the keys of learning_rates()",
                fix=fix,
            )
    elif len(rates := {float(group.get("lr", 0.0)) for group in optimizer.param_groups}) > 1:
        raise PolicyError(
            "The learning rates of the parameter groups would be overwritten.",
            where="make_optimizer",
            got=sorted(rates),
            expected="one rate for all groups: each step sets it to that of learning_rates(), by default the key `lr`",
            fix=fix,
        )


def check_rate(optimizer: torch.optim.Optimizer, used: Iterable[float], where: str) -> None:
    """Raises PolicyError if the optimizer's own learning rate, which each step overwrites, is none of those `used`.

    0 and the default of its class are accepted.
    """
    parameter = inspect.signature(type(optimizer)).parameters.get("lr")
    default = None if parameter is None else parameter.default
    now = " or ".join(dict.fromkeys(map(str, used)))
    for rate in (group["lr"] for group in optimizer.param_groups if "lr" in group):
        if rate not in (0.0, default, *used):
            raise PolicyError(
                "The learning rate of the optimizer would be overwritten.",
                where=f"{where}, make_optimizer",
                got=f"{type(optimizer).__name__} with lr={float(rate):g}",
                expected=f"lr=0.0: each step sets it to that of learning_rates(), now {now}",
                fix="set the config key lr or lr_schedule, and lr=0.0 in make_optimizer",
            )


def optimizer_arrays(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, np.ndarray]:
    """`parameter.key` -> array of the optimizer's state for each parameter; for Python numbers `parameter.key()`."""
    return {
        f"{names[parameter]}.{_stored_key(key, value)}": (
            to_numpy(value) if isinstance(value, Tensor) else np.asarray(value)
        )
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def set_optimizer_arrays(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    arrays: Mapping[str, np.ndarray],
    where: str,
) -> None:
    """Restores what `optimizer_arrays` returned; CheckpointError, without a change, for state of another model."""
    states = _states_of(optimizer, parameters, arrays, where)
    # The optimizer's own method chooses the devices: fused ones have their counts of steps on the GPU.
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {place: states[parameter] for place, parameter in enumerate(order) if parameter in states}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def check_optimizer_arrays(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    arrays: Mapping[str, np.ndarray],
    stored_class: str | None,
    where: str,
) -> None:
    """Raises the CheckpointError of `set_optimizer_arrays`, and one for another class; None: of unknown class."""
    own = path_of(type(optimizer))
    # The module may differ: a class of a script is in `__main__` there.
    if stored_class is not None and stored_class.partition(":")[2] != own.partition(":")[2]:
        raise CheckpointError(
            "The state is that of a different optimizer.",
            where=where,
            got=stored_class,
            expected=own,
            fix="restore with the policy class, whose make_optimizer chooses it, that the checkpoint was made with",
        )
    _states_of(optimizer, parameters, arrays, where)


def _states_of(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor],
    arrays: Mapping[str, np.ndarray],
    where: str,
) -> dict[Tensor, dict[str, Any]]:
    states: dict[Tensor, dict[str, Any]] = {}
    for name, array in arrays.items():
        of, _, key = name.rpartition(".")
        parameter = parameters.get(of)
        if parameter is None or not _fits(np.shape(array), parameter.shape):
            raise _another_optimizer(where, f"{name} {np.shape(array)}", parameters)
        number = key.endswith(_NUMBER)
        value = np.asarray(array).item() if number else torch.tensor(array)
        states.setdefault(parameter, {})[key.removesuffix(_NUMBER)] = value
    for parameter, state in optimizer.state.items():
        got, expected = states.get(parameter, {}).keys(), {key for key, value in state.items() if value is not None}
        if states and got != expected:
            raise _another_optimizer(where, sorted(got), sorted(expected))
    return states


def _fits(shape: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """Whether state of this shape may belong to a parameter of that one: a factor of Adafactor has axes of length 1."""
    return len(shape) != len(of) or all(size in (1, own) for size, own in zip(shape, of, strict=True))


def _stored_key(key: str, value: Any) -> str:
    # Optimizers compute in place with tensors [], but not with Python numbers: each must keep its type.
    return key if isinstance(value, Tensor) else f"{key}{_NUMBER}"


def _another_optimizer(where: str, got: Any, expected: Iterable[str]) -> CheckpointError:
    return CheckpointError(
        "The state is that of a different optimizer.",
        where=where,
        got=got,
        expected=f"state for {sorted(expected)}",
        fix="restore with the policy class and the model that the checkpoint was made with",
    )
