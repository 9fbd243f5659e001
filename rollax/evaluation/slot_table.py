"""What is known of each slot: its trajectory, the policy that acts for it, and the rewards so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rollax.env.rows import Rows
from rollax.evaluation.episode_table import EpisodeTable
from rollax.evaluation.table import Table


class SlotTable(Table):
    """One row per slot. The parts of a sampler add columns of their own.

    The columns are `trajectory`, a number that is unique across workers and time; `policy`, the position of a policy in
    `policy_ids`; and `reward`, the sum of the trajectory's rewards so far.

    Args:
        policy_ids: the policies.
        policy_of: `(agent_id, episode) -> policy id`, called once per agent and episode; None for a single policy.
    """

    def __init__(self, policy_ids: Sequence[str], policy_of: Callable[..., str] | None) -> None:
        super().__init__(trajectory=0, policy=0, reward=0.0)
        self._ids, self._policy_of = list(policy_ids), policy_of

    def begin(self, rows: Rows, starting: np.ndarray, first: int, episodes: EpisodeTable) -> None:
        """Begins a trajectory on the slot of each starting row: numbers it and chooses its policy.

        Args:
            rows: a poll or a reset.
            starting: [K] the rows that begin a trajectory; their episodes are running.
            first: the number of the first of them.
            episodes: the running episodes.
        """
        slots = rows.slots[starting]
        self["trajectory"][slots] = np.arange(first, first + len(slots))
        self["reward"][slots] = 0.0
        if self._policy_of is not None:
            self["policy"][slots] = [self._choose(rows, row, episodes) for row in starting.tolist()]

    def _choose(self, rows: Rows, row: int, episodes: EpisodeTable) -> int:
        episode, agent = episodes.episode(int(rows.env_index[row])), rows.agent_of(row)
        policy_id = episode.policies.get(agent)
        if policy_id is None:
            assert self._policy_of is not None
            policy_id = episode.policies[agent] = self._policy_of(agent, episode)
        return self._ids.index(policy_id)
