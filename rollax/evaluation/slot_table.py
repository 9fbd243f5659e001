"""Which trajectory each slot is in, and which policy acts for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rollax.env.rows import Rows
from rollax.evaluation.episode_table import EpisodeTable


class SlotTable:
    """Numbers the trajectories as they begin, and asks whose they are.

    Args:
        policy_ids: the policies; their numbers are their places here.
        policy_of: `(agent_id, episode) -> policy id`, asked once per agent and episode; None where there is one policy.
        first: the number of the first trajectory.
    """

    def __init__(self, policy_ids: Sequence[str], policy_of: Callable[..., str] | None, first: int) -> None:
        self._ids, self._policy_of = list(policy_ids), policy_of
        self._numbers = np.zeros(64, np.int64)
        self._policies = np.zeros(64, np.int64)
        self.next = first
        """The number of the next trajectory that begins."""
        self.room = 64
        """Slots up to this number may be used."""

    def anew(self) -> SlotTable:
        """The same where no trajectory has begun yet, with numbers that have not been given."""
        return SlotTable(self._ids, self._policy_of, self.next)

    def of(self, slots: np.ndarray) -> np.ndarray:
        """The number of the trajectory that each of these slots is in, unique for ever."""
        return self._numbers[slots]

    def policies_of(self, slots: np.ndarray) -> np.ndarray | None:
        """The number of the policy of each slot, any for a slot never seen before; None where there is one policy."""
        return None if len(self._ids) == 1 else self._policies.take(slots, mode="clip")

    def begin(self, slots: np.ndarray) -> None:
        """Trajectories begin on these slots."""
        needed = int(slots.max(initial=-1)) + 1
        if needed > self.room:
            self.room = 2 * needed
            self._numbers = np.resize(self._numbers, self.room)
            self._policies = np.resize(self._policies, self.room)
        self._numbers[slots] = np.arange(self.next, self.next + len(slots))
        self.next += len(slots)

    def choose_policies(self, rows: Rows, starting: np.ndarray, episodes: EpisodeTable) -> np.ndarray | None:
        """Asks for the policies of trajectories that begin; their numbers, or None where there is one policy.

        Args:
            rows: what was polled.
            starting: [K] the rows that begin a trajectory.
            episodes: where the running episodes are.
        """
        chosen = None
        if self._policy_of is not None:
            chosen = np.array([self._choose(rows, row, episodes) for row in starting.tolist()], np.int64)
            self._policies[rows.slots[starting]] = chosen
        return None if len(self._ids) == 1 else chosen

    def _choose(self, rows: Rows, row: int, episodes: EpisodeTable) -> int:
        episode, agent = episodes.episode(int(rows.env_index[row])), rows.agent_of(row)
        policy_id = episode.policies.get(agent)
        if policy_id is None:
            assert self._policy_of is not None
            policy_id = episode.policies[agent] = self._policy_of(agent, episode)
        return self._ids.index(policy_id)
