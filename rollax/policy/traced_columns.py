"""Algorithms that compute advantages and value targets inside compiled functions.

They have a method `traced_columns(steps)`, traced by JAX. It returns columns [R, T] for the loss, beyond those that
were sampled: what `prepare`, `postprocess` and `loss_columns` compute together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollax.policy.base_algorithm import BaseAlgorithm

ON_HOST = ("prepare", "postprocess", "add_advantages", "loss_columns")
"""The methods of an algorithm that `traced_columns` replaces."""


class Steps(NamedTuple):
    """Arrays [R, T] of JAX: R trajectories of T steps. If an episode ends in the middle, the next episode follows.

    Args:
        rewards: float32.
        values: V(s_t).
        next_values: V(s_{t+1}) of the observation after the step, before a new episode begins.
        terminated: whether the episode terminated with the step.
        over: whether the episode ended with the step, terminated or truncated.
    """

    rewards: Any
    values: Any
    next_values: Any
    terminated: Any
    over: Any


def why_only_on_host(algorithm: Any) -> str:
    """Returns why an algorithm's advantages cannot be computed on the device; an empty text if they can."""
    owner = next((kind for kind in type(algorithm).__mro__ if "traced_columns" in vars(kind)), None)
    if owner is None:
        return "an algorithm without `traced_columns`"
    found = class_that_changes_rows(algorithm, ON_HOST, replaced_in=owner)
    return "" if found is None else f"rows that {found.__name__} changes on the host"


def class_that_changes_rows(algorithm: Any, methods: Sequence[str], replaced_in: type = object) -> type | None:
    """Returns the first class of an algorithm whose own `methods` change rows; None if there is none.

    Args:
        algorithm: the algorithm; see `BaseAlgorithm.changes_rows`.
        methods: names of methods.
        replaced_in: a class whose `traced_columns` replaces these methods, in the class and its bases. They are not
            replaced in a base whose own `changes_rows` returns True.
    """
    for kind in type(algorithm).__mro__:
        if kind in (replaced_in, BaseAlgorithm) or not any(name in vars(kind) for name in methods):
            continue
        changes = vars(kind).get("changes_rows")
        if changes(algorithm) if changes is not None else not issubclass(replaced_in, kind):
            return kind
    return None
