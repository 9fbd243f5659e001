"""Checks of user-defined optimizers, and the state of optimizers as named NumPy arrays for checkpoints."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollax.core.importing import path_of
from rollax.errors import CheckpointError, PolicyError
from rollax.torch.weights import to_numpy

_NUMBER = "()"


def check_optimizer(optimizer: Any, model: nn.Module, rates: Any, lr: float, where: str) -> None:
    """Raises PolicyError for an optimizer that a policy cannot use, or that sets learning rates of its own.

    Args:
        optimizer: what `make_optimizer` returned. All its parameters must be the model's, because other parameters
            would not be saved.
        rates: the result of `learning_rates()`, a number or part -> number; each step gives it to the optimizer.
        lr: the value of the config key.
        where: the policy, for errors.
    """
    where = f"{where}, make_optimizer"
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PolicyError.not_returned("make_optimizer", "an optimizer", where, type(optimizer).__name__).expected(
            "an optimizer of torch.optim",
            "return it: `return torch.optim.SGD(params, lr=0.0)`; its learning rate is set at each step",
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        expected = "one that takes the gradients as they are, such as Adam, SGD or RMSprop"
        raise PolicyError(
            "The optimizer calls the loss itself, several times in each step.", where, type(optimizer).__name__
        ).expected(expected, "return torch.optim.Adam(params, lr=0.0)")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise PolicyError("The optimizer accepts only sparse gradients.", where, type(optimizer).__name__).expected(
            "an optimizer of dense gradients, such as Adam, SGD or RMSprop",
            "return one: `return torch.optim.Adam(params, lr=0.0)`",
        )
    own = set(model.parameters())  # frozen ones are accepted too: they get neither gradients nor optimizer state
    others = sum(parameter not in own for group in optimizer.param_groups for parameter in group["params"])
    if others:
        what = "The optimizer has parameters that are not the model's."
        got, fix = f"{others} other parameters", "make their module an attribute of make_model's module"
        raise PolicyError(what, where, got, expected=f"parameters of the model, a {type(model).__name__}", fix=fix)
    if isinstance(rates, Mapping):
        _check_parts(optimizer, rates, where)
    else:
        _check_rates(optimizer, (rates, lr), where)


def _check_parts(optimizer: torch.optim.Optimizer, rates: Mapping[str, float], where: str) -> None:
    names = [group.get("name") for group in optimizer.param_groups]
    if unknown := [name for name in names if name not in rates]:
        raise PolicyError("Some parameter groups have no learning rate.", where, f"groups named {unknown}").expected(
            f"groups with a `name` of {sorted(rates)}, the keys of learning_rates()",
            "give make_optimizer's `params` to the optimizer as they are",
        )


def _check_rates(optimizer: torch.optim.Optimizer, used: Iterable[float], where: str) -> None:
    """Raises PolicyError for rates without effect: several, or one other than 0, the default and those in `used`."""
    parameter = inspect.signature(type(optimizer)).parameters.get("lr")
    default = 0.0 if parameter is None else parameter.default
    accepted = {float(np.float32(rate)) for rate in (0.0, default, *used)}  # rates may be tensors, of 32 bits
    rates = {float(np.float32(group["lr"])) for group in optimizer.param_groups if "lr" in group}
    if len(rates) > 1 or not rates <= accepted:
        got = f"{type(optimizer).__name__} with lr={' and '.join(f'{rate:g}' for rate in sorted(rates))}"
        raise PolicyError("The learning rate of the optimizer would be overwritten.", where, got).expected(
            f"lr=0.0: each step sets the rate of learning_rates(), now {' or '.join(dict.fromkeys(map(str, used)))}",
            "set the config key lr or lr_schedule, and lr=0.0 in make_optimizer; for one rate for each part of the "
            "model, return {part: rate} from learning_rates(), and pass make_optimizer's `params` on unchanged",
        )


def optimizer_arrays(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, np.ndarray]:
    """Name -> array of the optimizer's state. A name is `parameter.key`, or `parameter.key()` for a Python number."""
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
    """Restores the result of `optimizer_arrays`; CheckpointError, without a change, for another optimizer or model."""
    states = _states_of(optimizer, parameters, arrays, where)
    # The optimizer's own method chooses the devices: fused optimizers keep step counts on the GPU.
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
    """Raises CheckpointError as `set_optimizer_arrays` does, and for another `stored_class`; None accepts any class."""
    own = path_of(type(optimizer))
    # Modules are not compared: a class that a script defines is in `__main__` only when this script runs.
    if stored_class is not None and stored_class.partition(":")[2] != own.partition(":")[2]:
        raise CheckpointError("The state is that of a different optimizer.", where, stored_class).expected(
            own, "restore with the policy class of the checkpoint, whose make_optimizer chooses the optimizer"
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
        # A parameter without stored state had no gradient yet.
        if parameter in states and got != expected:
            raise _another_optimizer(where, sorted(got), sorted(expected))
    return states


def _fits(shape: tuple[int, ...], of: tuple[int, ...]) -> bool:
    """Whether state of `shape` fits a parameter of shape `of`; another rank or axes of length 1 fit too (Adafactor)."""
    return len(shape) != len(of) or all(size in (1, own) for size, own in zip(shape, of, strict=True))


def _stored_key(key: str, value: Any) -> str:
    # Optimizers change scalar tensors in place, but replace Python numbers, so a restored value needs its old type.
    return key if isinstance(value, Tensor) else f"{key}{_NUMBER}"


def _another_optimizer(where: str, got: Any, expected: Iterable[str]) -> CheckpointError:
    return CheckpointError("The state is that of a different optimizer or model.", where, got).expected(
        f"state for {sorted(expected)}", "restore with the policy class and the model that the checkpoint was made with"
    )
