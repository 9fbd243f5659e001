"""`ModelTensors`: the parameters, other state and target parameters of a model, changed in place."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rollax.errors import PolicyError, text_of
from rollax.policy.update_plan import UpdatedTargets, part_of
from rollax.torch.weights import assign, extra_of, parameters_of, to_numpy

Copies = list[tuple[Tensor, Tensor]]
"""Tensors with copies of earlier values."""


class ModelTensors:
    """The trained parameters of a model, its other state, such as buffers, and target parameters.

    Args:
        updated_targets: updates the target parameters; None: no target parameters.

    Attributes:
        params: name -> trained parameter.
        extra: name -> tensor of the other state.
        parts: the names of the model's attributes that have trained parameters.
        target_model: a copy of the model with the target parameters; None without target parameters.
    """

    def __init__(self, model: nn.Module, updated_targets: UpdatedTargets | None) -> None:
        self.model = model
        self.params, self.extra = parameters_of(model), extra_of(model)
        self.parts = frozenset(map(part_of, self.params))
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in self.params.items()}
        self.target_model = None if updated_targets is None else _copied(model).eval().requires_grad_(False)
        self._updated_targets = updated_targets
        own = {id(tensor): tensor for tensor in self.extra.values()}
        self._ids_of_extra = frozenset(own)
        self._not_stored = {id(buffer): buffer for buffer in model.buffers() if id(buffer) not in own}
        self._buffers = [
            (module, key, own[id(buffer)])
            for module in model.modules()
            for key, buffer in module.named_buffers(recurse=False)
            if id(buffer) in own
        ]

    @property
    def targets(self) -> dict[str, Tensor]:
        """Name -> target parameter; empty if there are none."""
        if self.target_model is None:
            return {}
        found = dict(self.target_model.named_parameters())
        return {name: found[name] for name in self.params}

    def set_targets(self, arrays: Mapping[str, Any] | None = None) -> None:
        """Sets the target parameters, by default to the online parameters."""
        if self.target_model is not None:
            assign(self.targets, {n: to_numpy(p) for n, p in self.params.items()} if arrays is None else arrays)
            self._copy_extra()

    @torch.no_grad()
    def move_targets(self, num_updates: int) -> None:
        """Updates the target parameters after a gradient step."""
        if self._updated_targets is None:
            return
        targets = self.targets
        moved = self._updated_targets(targets, self.params, num_updates)
        for name, target in targets.items():
            if moved[name] is not target:
                target.copy_(moved[name])
        self._copy_extra()

    @torch.no_grad()
    def _copy_extra(self) -> None:
        """Copies the other state of the model, such as batch statistics, to the target model."""
        if self.extra and self.target_model is not None:
            own = {**dict(self.target_model.named_parameters()), **dict(self.target_model.named_buffers())}
            for name, tensor in self.extra.items():
                own[name].copy_(tensor)

    def check_complete(self, where: str) -> None:
        """Raises PolicyError for parameters that were added or unfrozen, or buffers added, after the policy was made.

        Calls `keep_buffers` first.
        """
        self.keep_buffers()
        unknown = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter not in self.names and (parameter.requires_grad or id(parameter) not in self._ids_of_extra)
        ]
        known = self._ids_of_extra | self._not_stored.keys()
        if new := [name for name, buffer in self.model.named_buffers() if id(buffer) not in known]:
            stored = self.model.state_dict(keep_vars=True).keys()
            unknown += [name for name in new if name in stored]  # others are not persistent, so they are not stored
        if not unknown:
            return
        raise PolicyError(
            "Some parameters or buffers would be neither trained nor stored: the policy was created without them.",
            where,
            unknown,
        ).expected(
            "the layers that make_model returned, with their buffers, and requires_grad as make_model set it",
            "create them in make_model, and copy values into them (load_state_dict without assign=True); to train "
            "parameters later, leave them trainable there, and set requires_grad=False until then",
        )

    def clear_gradients(self) -> None:
        """Clears the gradients of all parameters, because the optimizer may have only some of them."""
        for parameter in self.params.values():
            parameter.grad = None

    @torch.no_grad()
    def keep_buffers(self) -> None:
        """Where the model has replaced a buffer by a new tensor, copies the new values into the original tensor.

        Raises PolicyError if the new tensor has another shape; the original tensor then keeps its values.
        """
        misfit = None
        for module, key, tensor in self._buffers:
            newer = module.get_buffer(key)
            if newer is tensor:
                continue
            module.register_buffer(key, tensor)
            if newer is None or _sizes(newer) != _sizes(tensor):
                misfit = f"buffer {key!r} of {type(module).__name__}", newer, tensor
            else:
                tensor.copy_(newer.reshape(tensor.shape))
        if misfit is not None:  # raised last, so that all original tensors are restored
            where, newer, tensor = misfit
            raise PolicyError(
                "A buffer was replaced by one of another shape.",
                f"{type(self.model).__name__}, {where}",
                None if newer is None else tuple(newer.shape),
            ).expected(tuple(tensor.shape), "register it with its final shape in the constructor")

    @contextmanager
    def learning(self, parts: Set[str]) -> Iterator[None]:
        """Inside the block, only `parts` get gradients; at its end, the buffers of the other parts are restored."""
        # Parameters that the user has frozen stay frozen.
        waiting = [p for name, p in self.params.items() if p.requires_grad and part_of(name) not in parts]
        with self.keeping_extra(self.parts - parts):
            try:
                for parameter in waiting:
                    parameter.requires_grad_(False)
                yield
            finally:
                for parameter in waiting:
                    parameter.requires_grad_(True)

    @contextmanager
    def keeping_extra(self, parts: Set[str] | None = None) -> Iterator[Mapping[str, Tensor]]:
        """Keeps copies of the other state, such as buffers, and restores it at the end of the block.

        Args:
            parts: the parts of the model whose state is kept; None: the whole model.
        """
        kept = {name: t for name, t in self.extra.items() if parts is None or part_of(name) in parts}
        before = {name: tensor.detach().clone() for name, tensor in kept.items()}
        try:
            yield before
        finally:
            try:
                self.keep_buffers()
            finally:
                with torch.no_grad():
                    for name, tensor in kept.items():
                        tensor.copy_(before[name])

    def copies(self) -> Copies:
        """Each tensor with a copy, which requires gradients if the tensor does; for `restore`."""
        tensors = [*self.params.values(), *self.extra.values()]
        if self.target_model is not None:
            tensors += [*self.target_model.parameters(), *self.target_model.buffers()]
        return [(tensor, tensor.detach().clone().requires_grad_(tensor.requires_grad)) for tensor in tensors]

    @torch.no_grad()
    def restore(self, copies: Copies) -> None:
        """Restores tensors, and whether they require gradients; drops gradients."""
        for tensor, copied in copies:
            tensor.copy_(copied).requires_grad_(copied.requires_grad)
        self.clear_gradients()

    def are_finite(self) -> bool:
        """Whether the parameters and their norm are finite."""
        return math.isfinite(torch.nn.utils.get_total_norm(list(self.params.values())).item())

    def not_finite(self) -> list[str]:
        """Names a parameter that is not finite, or the largest one if only the norm is not finite; else empty."""
        if self.are_finite():
            return []
        norms = {name: parameter.detach().double().norm().item() for name, parameter in self.params.items()}
        largest = max(norms, key=lambda name: math.inf if math.isnan(norms[name]) else norms[name])
        return [f"the new value of {largest}"]


def _sizes(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # a tensor that was computed from parameters, as by nn.utils.weight_norm
        raise PolicyError(
            "The model cannot be copied for target parameters.", f"make_model, {type(model).__name__}", text_of(error)
        ).expected(
            "a module that copy.deepcopy copies",
            "replace torch.nn.utils.weight_norm by parametrizations.weight_norm; keep no computed tensors as "
            "attributes",
        ) from error
