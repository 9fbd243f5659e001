"""`GroupMaskChecks`: checks the action masks of a group's members in NumPy; `GroupQNetwork` applies them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.core import trees
from rollax.core.spaces import ACTION_MASK
from rollax.errors import EnvError


class GroupMaskChecks:
    """Checks the action masks of a group's members. The observation of an absent member, with its mask, is all zeros.

    If an observation filter may change zeros (`filtered`), absent members cannot be recognized. EnvError is then raised
    only if no member of a group has a valid action.
    """

    present = False  # no mask at the top level of the observation; the group's model applies the members' masks

    def __init__(self, masked: bool, *, filtered: bool) -> None:
        self._masked, self._filtered = masked, filtered

    def check(self, obs: Any, policy_id: str) -> None:
        """Raises EnvError if the mask of a present member, or of all members, has no entry above 0."""
        if not self._masked:
            return
        nothing = np.stack([~(member[ACTION_MASK] > 0).any(axis=1) for member in obs], axis=1)
        if not nothing.any():
            return
        wrong = nothing & nothing.all(axis=1, keepdims=True)
        if not self._filtered:
            wrong |= nothing & np.stack([_shows_something(member) for member in obs], axis=1)
        if wrong.any():
            row, member = np.argwhere(wrong)[0].tolist()
            raise EnvError(
                "The action mask allows no action.",
                f"policy {policy_id!r}, row {row} of {len(nothing)}, member {member} of {len(obs)}",
                "no entry above 0",
                expected="at least one 1, for a member that is present",
            ).fix("leave one action valid, or end the member's trajectory, with observations of zeros")


def _shows_something(member: Any) -> np.ndarray:
    """[B] whether any number in the row is not 0."""
    leaves = [leaf.reshape(len(leaf), -1).any(axis=1) for leaf in trees.leaves(member)]
    return np.logical_or.reduce(leaves)
