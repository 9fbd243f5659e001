"""A bound on polls in which no agent can act: an environment that never requests an action is refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from rollax.errors import EnvError

MOST_IDLE_POLLS = 1000
"""Polls in a row with reports and without an agent that can act, after which the environment counts as stuck."""


class IdlePolls:
    """Counts, for each sub-environment, the polls in a row that report on it while none of its agents can act.

    Args:
        name: of the environment, in error messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.counts: dict[int, int] = {}
        """Idle polls in a row, by sub-environment."""

    def idle(self, env_id: int, reported: Iterable[Hashable], alive: Iterable[Hashable]) -> None:
        """Counts a poll that reported on a sub-environment in which no agent can act.

        Args:
            env_id: the sub-environment.
            reported: the agents that the poll names.
            alive: the agents whose trajectories continue.
        Raises:
            EnvError: too many such polls in a row.
        """
        count = self.counts.get(env_id, 0) + 1
        self.counts[env_id] = count
        if count >= MOST_IDLE_POLLS:
            raise stuck(f"{self._name}, sub-environment {env_id}", reported, alive)

    def acting(self, env_id: int) -> None:
        """Notes that an agent can act in this sub-environment."""
        self.counts.pop(env_id, None)


def stuck(where: str, reported: Iterable[Hashable], alive: Iterable[Hashable]) -> EnvError:
    """The error of an environment in which no agent can act, poll after poll."""
    return EnvError(
        f"Nobody can act, for {MOST_IDLE_POLLS} polls in a row.",
        where=where,
        got=f"news of agents {_names(reported)}; alive: {_names(alive)}",
        expected="an observation of an agent that is alive, or the episode's end",
        fix="end the episode ('__all__' True) when its last agent has ended, and leave agents that have ended out of "
        "obs, rewards and flags",
    )


def _names(agents: Iterable[Hashable]) -> list[str]:
    return sorted({str(agent) for agent in agents} - {"__all__"})
