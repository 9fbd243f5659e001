"""`PolicyRows`: the rows of a poll that one policy observes or acts on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollax.core import trees
from rollax.env.rows import Rows


class GivenActions(NamedTuple):
    """The actions that the environment has given for some of one policy's acting rows."""

    rows: np.ndarray  # positions among the acting rows
    values: Sequence[Any]
    logps: Mapping[int, float]  # position -> log-probability of an action that an earlier version of the policy chose


class PolicyRows(NamedTuple):
    """Some rows of one policy, with their filtered observations."""

    policy_id: str
    selection: np.ndarray | None  # None: all rows
    obs: trees.Tree  # None if no row has an observation
    given: np.ndarray | None = None  # [rows] true for actions given by the environment; None: no such rows

    def acting(self, rows: Rows) -> PolicyRows | None:
        """The rows that act next, some with given actions; None if there are none."""
        if self.obs is None:
            return None
        acts = picked(rows.acting(), self.selection)
        acting = np.count_nonzero(acts)
        if not acting:
            return None
        selection, obs = self.selection, self.obs
        if acting < len(acts):
            positions = acts.nonzero()[0]
            selection = positions if selection is None else selection[positions]
            obs = trees.index(obs, positions)
        given = picked(rows.given(), selection) if rows.given_actions else None
        return PolicyRows(self.policy_id, selection, obs, given if given is not None and given.any() else None)

    def before(self, later: PolicyRows, rows: int, later_rows: int) -> PolicyRows:
        """These rows, followed by `later`, as a selection from two joined polls of `rows` and `later_rows` rows."""
        parts = [np.arange(rows) if self.selection is None else self.selection]
        parts.append(rows + (np.arange(later_rows) if later.selection is None else later.selection))
        given = None
        if self.given is not None or later.given is not None:
            both = zip((self.given, later.given), parts, strict=True)
            given = np.concatenate([np.zeros(len(part), bool) if own is None else own for own, part in both])
        return PolicyRows(self.policy_id, np.concatenate(parts), trees.concat((self.obs, later.obs)), given)


def picked(column: Any, rows: np.ndarray | None) -> Any:
    """Some rows of a column; None for all."""
    return column if rows is None or column is None else column[rows]


def turns_replaced(observed: list[PolicyRows], started: Rows, begun: list[PolicyRows]) -> list[PolicyRows] | None:
    """The `observed` rows of each policy, with the first observations of `begun` trajectories in place of final ones.

    None if an agent now has another policy.
    """
    turns = {turn.policy_id: turn for turn in observed}
    for policy_id, selection, new_obs, _ in begun:
        slots = picked(started.slots, selection)
        if policy_id not in turns:
            return None
        places, mine = slots, turns[policy_id].selection
        if mine is not None:
            places = np.searchsorted(mine, slots)
            if not np.array_equal(np.take(mine, places, mode="clip"), slots):
                return None
        obs = trees.tree_map(np.copy, turns[policy_id].obs)
        trees.put(obs, places, new_obs)
        turns[policy_id] = PolicyRows(policy_id, mine, obs)
    return list(turns.values())
