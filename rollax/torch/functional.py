"""`torch_policy`: makes a subclass of `TorchPolicy` from functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rollax.batch import SampleBatch
from rollax.errors import PolicyError
from rollax.torch.torch_policy import TorchPolicy


def torch_policy(
    loss: Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]],
    *,
    make_model: Callable[[Any], nn.Module] | None = None,
    postprocess: Callable[[Any, Any], SampleBatch] | None = None,
    make_optimizer: Callable[[Any, Any], torch.optim.Optimizer] | None = None,
    train_columns: Sequence[str] | Callable[[Any, SampleBatch], Mapping[str, Any]] | None = None,
    batch_columns: Iterable[str] | None = None,
    statistics: Sequence[str] = (),
    config_class: Any = None,
    base: type[TorchPolicy] = TorchPolicy,
    name: str,
) -> type[TorchPolicy]:
    """Returns a subclass of `base`; each function is one of its methods, with the policy as first argument.

    Args:
        loss: `(policy, model, out, batch, mask, coefficients) -> (loss, statistics)`; see `ModelPolicy.loss`.
        make_model: `(policy) -> model`.
        postprocess: `(policy, fragment) -> batch`; adds columns to all trajectory segments at once.
        make_optimizer: `(policy, params) -> optimizer`.
        train_columns: the columns that the loss reads, or `(policy, batch) -> name -> column`.
        batch_columns: the columns that sampling fills; None: all but `infos`; `prev_actions` and `prev_rewards` where
            the model reads them.
        statistics: the names of the statistics that the loss returns.
        config_class: the class of its configs; None: that of `base`.
        name: the name of the class. Give it that of the variable, `P = torch_policy(loss, name="P")`: checkpoints and
            other processes import the class from the calling module by this name.
    Raises:
        PolicyError: a text in place of names; or a `name` that is no identifier, or that of another object in the
            calling module, such as the loss.
    """
    for argument, names in (
        ("train_columns", train_columns),
        ("batch_columns", batch_columns),
        ("statistics", statistics),
    ):
        if isinstance(names, str):
            raise PolicyError(
                "A string is given where a list of names is expected.",
                where=f"torch_policy, argument {argument}",
                got=names,
                expected="a list of names",
                fix=f"pass {argument}=[{names!r}]",
            )
    module = sys._getframe(1).f_globals
    _check_name(name, module)
    methods: dict[str, Any] = {"loss": _method(loss), "statistics": tuple(statistics), "__doc__": loss.__doc__}
    given = {"make_model": make_model, "postprocess_rows": postprocess, "make_optimizer": make_optimizer}
    methods |= {method: _method(function) for method, function in given.items() if function is not None}
    if callable(train_columns):
        methods["train_columns"] = _method(train_columns)
    elif train_columns is not None:
        columns = tuple(train_columns)
        methods["train_columns"] = lambda policy, batch: {column: batch[column] for column in columns}
    if batch_columns is not None:
        methods["batch_columns"] = frozenset(batch_columns)
    if config_class is not None:
        methods["config_class"] = config_class
    return type(name, (base,), {**methods, "__module__": module.get("__name__", "__main__")})


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, because a class does not bind partials and callable objects to its instances."""

    def method(policy: Any, *args: Any, **kwargs: Any) -> Any:
        return function(policy, *args, **kwargs)

    return method


def _check_name(name: str, module: Mapping[str, Any]) -> None:
    # A class under this name is an earlier version, if a cell of a notebook is run again.
    if name.isidentifier() and isinstance(module.get(name, object), type):
        return
    raise PolicyError(
        "The class could not be found again by its name.",
        where="torch_policy, argument name",
        got=f"{name!r}" + (f", the name of {module[name]!r}" if name in module else ""),
        expected="the name of the variable that the class is assigned to",
        fix='give both the same name: `ImitationPolicy = torch_policy(imitation, name="ImitationPolicy")`',
    )
