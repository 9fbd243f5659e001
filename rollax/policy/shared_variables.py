"""`SharedVariables`: variables of the models that several policies share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rollax.config.multiagent import SharedParts
from rollax.errors import ConfigError, PolicyError, nearest
from rollax.policy.policy import Policy, Weights


@dataclass(frozen=True, slots=True)
class _Group:
    policy_ids: Sequence[str]
    names: Sequence[str]


class SharedVariables:
    """Assigns the shared arrays of a policy, whenever they change, to the other policies of its group, without copies.

    Optimizer states are not shared. All policies of a group start with the arrays of its first policy. A policy
    replaces `params` and `extra`, name -> array, as a whole, and then calls `on_new_variables`. It calls
    `on_new_variables` before learning too, in case an interrupt has prevented the previous call.

    Raises ConfigError for a group of fewer than two policies, an unknown policy or part, parts that differ, or a
    variable in two groups; PolicyError for a policy without named variables.
    """

    def __init__(self, groups: Mapping[str, SharedParts], policies: Mapping[str, Policy]) -> None:
        self._groups = [_group(name, shared, policies) for name, shared in groups.items()]
        _refuse_overlap(groups, self._groups)
        self._holders = {id_: _holder(policies[id_], id_) for group in self._groups for id_ in group.policy_ids}
        self._unfinished: str | None = None  # the source of an assignment that an interrupt has stopped
        for group in self._groups:
            self._assign_from(group.policy_ids[0])
        self._assigned = self._held()  # the arrays of each policy after the last assignment
        for holder in self._holders.values():
            holder.on_new_variables = self.synchronize

    @property
    def policy_ids(self) -> Sequence[str]:
        """The policies that share variables."""
        return tuple(self._holders)

    def stored_once(self, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        """The weights by policy id and name, with one array object for each shared array, so that it is stored once."""
        once = dict(weights)
        for group in self._groups:
            ids = [policy_id for policy_id in group.policy_ids if policy_id in once]
            for other in ids[1:]:
                once[other] = {**once[other], **{name: once[ids[0]][name] for name in group.names}}
        return once

    def refuse_conflicts(self, weights: Mapping[str, Any]) -> None:
        """Raises PolicyError if weights, by policy id and name, have different values of one shared variable."""
        for group in self._groups:
            given = [policy_id for policy_id in group.policy_ids if isinstance(weights.get(policy_id), Mapping)]
            for name in group.names:
                having = [policy_id for policy_id in given if name in weights[policy_id]]
                for one, other in pairwise(having):
                    _refuse_conflict(name, one, weights[one][name], other, weights[other][name])

    def synchronize(self) -> None:
        """Assigns the new arrays of a policy to the other policies; repeats an assignment that an interrupt stopped."""
        source = self._unfinished
        if source is None:
            source = next((id_ for id_, held in self._held().items() if not _same(held, self._assigned[id_])), None)
        if source is not None:
            self._unfinished = source
            self._assign_from(source)
            self._assigned = self._held()
            self._unfinished = None

    def _held(self) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        return {policy_id: (holder.params, holder.extra) for policy_id, holder in self._holders.items()}

    def _assign_from(self, policy_id: str) -> None:
        source = self._holders[policy_id]
        newer = {**source.params, **source.extra}  # what is in `params` of one policy may be in `extra` of another
        for group in self._groups:
            if policy_id in group.policy_ids:
                for other_id in group.policy_ids:
                    other = self._holders[other_id]
                    if other is not source:
                        other.params = _with(other.params, newer, group.names)
                        other.extra = _with(other.extra, newer, group.names)


def _refuse_conflict(name: str, one: str, value: Any, other: str, second: Any) -> None:
    if value is second:
        return
    try:
        array, array_of_other = np.asarray(value), np.asarray(second)
    except (RuntimeError, TypeError, ValueError):  # tensors that need `detach` or `cpu` first; lists of unequal lengths
        return
    if array.shape != array_of_other.shape:
        return  # one has a wrong shape, for which `set_weights` raises the error
    differs = (array != array_of_other) & ((array == array) | (array_of_other == array_of_other))  # NaN is like NaN
    if differs.any():
        raise PolicyError(
            "Two policies that share a variable are given different values of it.",
            f"set_weights, variable {name!r} of policies {one!r} and {other!r}",
            f"{np.count_nonzero(differs)} different numbers of {differs.size}",
            expected="equal values, or those of one policy",
        ).fix(f"give {one!r} and {other!r} the same array, or set the weights of one of them: it changes both")


def _same(arrays: tuple[Any, Any], others: tuple[Any, Any]) -> bool:
    return all(array is other for array, other in zip(arrays, others, strict=True))


def _with(arrays: Mapping[str, Any], newer: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    return {**arrays, **{name: newer[name] for name in names if name in arrays}}


def _group(name: str, shared: SharedParts, policies: Mapping[str, Policy]) -> _Group:
    key = f"config key 'multiagent.shared_variables.{name}'"
    policy_ids = tuple(policies) if shared.policies is None else tuple(dict.fromkeys(shared.policies))
    for policy_id in policy_ids:
        if policy_id not in policies:
            raise ConfigError.unknown("policy in shared_variables", policy_id, policies, f"{key}, policies")
    if len(policy_ids) < 2:
        raise ConfigError("Fewer than two policies share variables.", f"{key}, policies", policy_ids).expected(
            "at least two policies", "list at least two policies, or leave the entry out"
        )
    shapes = {policy_id: _shapes(policies[policy_id], policy_id, shared.parts, key) for policy_id in policy_ids}
    first_id, *others = policy_ids
    for other_id in others:
        if shapes[other_id] != shapes[first_id]:
            different = sorted(dict(shapes[first_id].items() ^ shapes[other_id].items()))
            raise ConfigError(
                "The shared parts of the models differ.",
                f"{key}, {different[0]}",
                f"{first_id!r}: {_described(shapes[first_id].get(different[0]))}, "
                f"{other_id!r}: {_described(shapes[other_id].get(different[0]))}",
                expected="the same variables with the same shapes, on the same device, in every policy",
            ).fix("give the policies equal spaces, model configs and devices for these parts, or share fewer parts")
    return _Group(policy_ids, tuple(shapes[first_id]))


def _shapes(policy: Policy, policy_id: str, parts: Sequence[str], key: str) -> dict[str, tuple]:
    """Name -> (shape, dtype, device) of the variables in these parts of one policy's model; device None for JAX."""
    holder = _holder(policy, policy_id)
    device = getattr(holder, "device", None)
    arrays = {**holder.params, **holder.extra}
    names = [name for part in parts for name in _in_part(part, arrays, policy_id, key)]
    return {name: (tuple(arrays[name].shape), str(arrays[name].dtype), device) for name in dict.fromkeys(names)}


def _in_part(part: str, names: Iterable[str], policy_id: str, key: str) -> list[str]:
    found = [name for name in names if name == part or name.startswith(f"{part}.")]
    if not found:
        known = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
        raise ConfigError(
            "The model of a policy lacks a shared part.", f"{key}, parts", f"{part!r}, for policy {policy_id!r}"
        ).expected(f"variables or modules from {sorted(known)}", nearest(part, known))
    return found


def _refuse_overlap(groups: Mapping[str, SharedParts], resolved: Sequence[_Group]) -> None:
    group_of: dict[tuple[str, str], str] = {}
    for group_name, group in zip(groups, resolved, strict=True):
        for policy_id in group.policy_ids:
            for name in group.names:
                other = group_of.setdefault((policy_id, name), group_name)
                if other != group_name:
                    raise ConfigError(
                        "A variable is in two entries.",
                        "config key 'multiagent.shared_variables'",
                        f"{name!r} of policy {policy_id!r}, in {other!r} and in {group_name!r}",
                        expected="each variable of a policy in one entry",
                    ).fix("merge the two entries, or share a smaller part in one of them")


def _holder(policy: Policy, policy_id: str) -> Any:
    if not hasattr(policy, "on_new_variables"):
        raise PolicyError("A policy without named variables cannot share them.", policy.label).expected(
            "a JaxPolicy, or a class with `params`, `extra` and `on_new_variables`",
            "leave the policy out of multiagent.shared_variables",
        )
    return policy


def _described(shape: tuple | None) -> str:
    if shape is None:
        return "no such variable"
    return f"{shape[1]}{list(shape[0])}" + ("" if shape[2] is None else f" on {shape[2]}")
