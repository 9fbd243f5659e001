"""`torch_algorithm`: makes a subclass of `TorchAlgorithm` from functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rollax.batch import SampleBatch
from rollax.errors import PolicyError
from rollax.torch.algorithm import TorchAlgorithm


def torch_algorithm(
    loss: Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]],
    *,
    make_model: Callable[[Any], nn.Module] | None = None,
    postprocess: Callable[[Any, Any, Any], SampleBatch] | None = None,
    make_optimizer: Callable[[Any, Any, Any], torch.optim.Optimizer] | None = None,
    reads: Sequence[str] | None = None,
    loss_columns: Callable[[Any, SampleBatch, Any], Mapping[str, Any]] | None = None,
    statistics: Sequence[str] = (),
    config_class: Any = None,
    base: type[TorchAlgorithm] = TorchAlgorithm,
    name: str,
) -> type[TorchAlgorithm]:
    """Returns a subclass of `base` with these functions as methods; their first argument is the algorithm.

    Args:
        loss: `(algorithm, model, out, batch, mask, coefficients) -> (loss, statistics)`; see `BaseAlgorithm.loss`.
        make_model: `(algorithm) -> model`.
        postprocess: `(algorithm, fragment, values) -> batch`; adds columns to all trajectory segments at once.
        make_optimizer: `(algorithm, params, model) -> optimizer`.
        reads: the columns that the loss reads; None: `base.reads`.
        loss_columns: `(algorithm, batch, rng) -> name -> column`; see `BaseAlgorithm.loss_columns`.
        statistics: the names of the statistics that the loss returns.
        config_class: the class of the algorithm's configs; None: `base.config_class`.
        name: the name of the class, which must equal the variable's name: `A = torch_algorithm(loss, name="A")`;
            checkpoints and other processes import the class from the calling module by this name.
    Raises:
        PolicyError: a string in place of a list of names; or a `name` that is no identifier, or that names an object
            of the calling module that is not a class, such as the loss.
    """
    for argument, names in (("reads", reads), ("statistics", statistics)):
        if isinstance(names, str):
            raise PolicyError(
                "A string is given where a list of names is expected.", f"torch_algorithm, argument {argument}", names
            ).expected("a list of names", f"pass {argument}=[{names!r}]")
    module = sys._getframe(1).f_globals
    _check_name(name, module)
    methods: dict[str, Any] = {"loss": _method(loss), "statistics": tuple(statistics), "__doc__": loss.__doc__}
    given = {
        "make_model": make_model,
        "postprocess": postprocess,
        "make_optimizer": make_optimizer,
        "loss_columns": loss_columns,
    }
    methods |= {method: _method(function) for method, function in given.items() if function is not None}
    if reads is not None:
        methods["reads"] = tuple(reads)
    if config_class is not None:
        methods["config_class"] = config_class
    return type(name, (base,), {**methods, "__module__": module.get("__name__", "__main__")})


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` in a plain function, because a class binds no partials or callable objects to its instances."""

    def method(algorithm: Any, *args: Any, **kwargs: Any) -> Any:
        return function(algorithm, *args, **kwargs)

    return method


def _check_name(name: str, module: Mapping[str, Any]) -> None:
    # If a notebook cell is run again, this name already holds the earlier version of the class.
    if name.isidentifier() and isinstance(module.get(name, object), type):
        return
    got = f"{name!r}" + (f", the name of {module[name]!r}" if name in module else "")
    expected = "the name of the variable that the class is assigned to"
    raise PolicyError(
        "The class could not be found again by its name.", "torch_algorithm, argument name", got
    ).expected(expected, 'give both the same name: `Imitation = torch_algorithm(imitation, name="Imitation")`')
