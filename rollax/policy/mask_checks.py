"""Checks action masks in NumPy; `ActionDistribution.mask` applies them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rollax.core import trees
from rollax.core.spaces import (
    ACTION_MASK,
    EMBEDDINGS,
    at,
    bounds,
    choices,
    have_choices,
    leaves,
    path_text,
    space_text,
)
from rollax.errors import EnvError, ShapeError, SpaceError


def has_mask(observation_space: Space) -> bool:
    """Whether observations contain an action mask."""
    return isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces


def masks_choices(observation_space: Space | None, action_space: Space | None) -> bool:
    """Whether observations contain a mask of the discrete choices of actions; false if a space is unknown."""
    if observation_space is None or action_space is None:
        return False
    return has_mask(observation_space) and bool(choices(action_space))


def are_allowed(mask: NDArray, actions: trees.Tree, action_space: Space) -> NDArray[np.bool_]:
    """[N] whether masks [N, choices] allow the discrete choices of actions."""
    taken = [
        (at(actions, path) - np.asarray(bounds(leaf)[0])).reshape(len(mask), -1)
        for path, leaf in leaves(action_space)
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete)
    ]
    entries = np.concatenate(taken, axis=1).astype(np.int64) + np.cumsum([0, *choices(action_space)])[:-1]
    return np.logical_and.reduce(np.take_along_axis(mask, entries, axis=1) > 0, axis=1)


class MaskChecks:
    """Checks the action masks in one agent's observations, if its space has them.

    Raises SpaceError for masks of actions without discrete choices, or if the width is not the number of choices.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self.present = has_mask(observation_space)
        counts = choices(action_space)
        self._width = sum(counts)
        # The first entry of each discrete action in a mask.
        self._starts = np.cumsum([0, *counts])[:-1]
        if isinstance(observation_space, spaces.Dict) and self.present and EMBEDDINGS not in observation_space.spaces:
            _check_space(observation_space[ACTION_MASK], self._width, action_space)

    def check(self, obs: Any, policy_id: str) -> None:
        """Raises EnvError if a mask leaves a discrete action without a valid choice, ShapeError for a wrong width."""
        if not self.present:
            return
        mask = obs[ACTION_MASK]
        if mask.shape[1:] != (self._width,):
            raise ShapeError(
                "The action mask has the wrong width.",
                f"policy {policy_id!r}, observation key {ACTION_MASK!r}",
                mask.shape,
            ).expected((len(mask), self._width), "give the mask one entry for each choice")
        allowed = have_choices(mask, self._starts)
        if not allowed.all():
            row, action = np.argwhere(~allowed)[0].tolist()
            several = f", discrete action {action} of {len(self._starts)}" if len(self._starts) > 1 else ""
            where = f"policy {policy_id!r}, row {row} of {len(mask)}{several}"
            raise EnvError.no_valid_action(where, "no entry above 0")


def _check_space(space: Space, width: int, action_space: Space) -> None:
    where = f"observation space, key {ACTION_MASK!r}"
    if not width:
        what = "The observation has an action mask, but the action space has no discrete choices."
        got, expected = space_text(action_space), "Discrete or MultiDiscrete actions, or a Dict or Tuple with some"
        raise SpaceError(what, where, got, expected=expected, fix=f"leave {ACTION_MASK!r} out of the observation")
    if isinstance(space, spaces.Dict | spaces.Tuple) or space.shape != (width,):
        raise SpaceError("The action mask has the wrong width.", where, space_text(space)).expected(
            f"MultiBinary({width}), or a Box of that shape: one entry for each choice of the actions",
            "give the mask one entry for each choice; the entries of several actions follow one another",
        )


def refuse_nested_masks(observation_space: Space, action_space: Space, where: str, fix: str) -> None:
    """Raises SpaceError if masks of choices are only in nested parts of observations, where they have no effect."""
    if has_mask(observation_space) or not choices(action_space):
        return
    for path, _ in leaves(observation_space):
        if ACTION_MASK in path:
            raise SpaceError(
                "The action mask is not at the top level of the observation, so it would have no effect.",
                where + path_text(path),
                space_text(observation_space),
                expected=f"a Dict with the key {ACTION_MASK!r}, beside the other parts of the observation",
            ).fix(f"{fix}; rename the key if it is an ordinary feature")
