"""Checks on the other parts of a request: rewards, infos, ids and action masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space

from rollax.core.spaces import ACTION_MASK, choices, have_choices
from rollax.core.trees import Tree, index
from rollax.errors import RequestError
from rollax.policy.action_masks import are_allowed, masks_choices
from rollax.serving.values import Where, plain, unpack

_LARGEST = float(np.finfo(np.float32).max)


def check_finite_number(value: Any, what: str, where: str, largest: float | None = None) -> float:
    """The number as a float.

    Raises:
        RequestError: it is not a finite number, or too large.
    """
    if type(value) is not float and type(value) is not int:
        raise RequestError(f"The {what} is not a number.", status=422, where=where, got=value, expected="a number")
    if type(value) is float and math.isnan(value):
        raise RequestError(f"The {what} is NaN.", status=422, where=where, got=value, expected="a finite number")
    if abs(value) > (_LARGEST if largest is None else largest):
        limit = "a finite number" if largest is None else f"a number from {-largest:g} to {largest:g}"
        raise RequestError(f"The {what} is too large.", status=422, where=where, got=value, expected=limit)
    return float(value)


def read_plain(value: Any, what: str, where: str, *, depth: int = 16) -> Any:
    """A value of finite numbers, strings, booleans, None, lists, and dicts with string keys; packed arrays as lists.

    Raises:
        RequestError: it contains other values, or is nested more deeply than `depth`.
    """
    if value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list) and depth > 0:
        return [read_plain(part, what, where, depth=depth - 1) for part in value]
    if isinstance(value, dict) and depth > 0:
        if not all(isinstance(key, str) for key in value):
            raise RequestError(f"{what} has a key that is not a string.", status=422, where=where, got=value)
        if isinstance(value.get("data"), bytes):
            return read_plain(unpack(value, where).tolist(), what, where, depth=depth - 1)
        return {key: read_plain(part, what, where, depth=depth - 1) for key, part in value.items()}
    raise RequestError(
        f"{what} has a value that is not plain.",
        status=422,
        where=where,
        got=value,
        expected="finite numbers, strings, booleans, null, and lists and objects of those, up to 16 levels",
        fix="convert the value to one of these",
    )


class AllowedActions:
    """Checks logged actions against the action masks in their observations.

    Args:
        observation_space: has the key `action_mask` if there are masks.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.masked = masks_choices(observation_space, action_space)
        self._action_space = action_space
        self._counts = choices(action_space)
        self._starts = np.cumsum([0, *self._counts])[:-1]

    def check(self, columns: Tree, where: Where) -> None:
        """Refuses masks of a wrong width or without a valid action, given columns of observations."""
        if not self.masked:
            return
        mask = columns[ACTION_MASK]
        width = sum(self._counts)
        if mask.shape[1:] != (width,):
            raise RequestError(
                "The action mask has the wrong width.",
                status=422,
                where=where(0),
                got=f"shape {mask.shape[1:]}",
                expected=f"{width} entries, one for each choice",
            )
        allowed = have_choices(mask, self._starts).all(axis=1)
        if not allowed.all():
            raise RequestError(
                "The action mask allows no action.",
                status=422,
                where=where(int(np.argmin(allowed))),
                got="no entry above 0",
                expected="at least one 1 for each discrete action",
                fix="leave one action valid, or end the episode",
            )

    def check_actions(self, observations: Tree, actions: Tree, where: Where) -> None:
        """Refuses actions that the masks of their observations forbid, given columns of both."""
        if not self.masked:
            return
        allowed = are_allowed(observations[ACTION_MASK], actions, self._action_space)
        if not allowed.all():
            row = int(np.argmin(allowed))
            raise RequestError(
                "The logged action is not allowed by its action mask.",
                status=422,
                where=where(row),
                got=str(plain(index(actions, row))),
                expected="an action with a 1 in the mask",
                fix="log the action as the environment took it, with the mask of its observation",
            )
