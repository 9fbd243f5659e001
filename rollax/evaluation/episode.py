"""`Episode`: what callbacks and policies may know of a running episode."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from rollax.errors import ConfigError


class Episode:
    """One episode of one sub-environment.

    Args:
        episode_id: unique across workers and time.
        env_index: the sub-environment.
        rewards: the sampler's array of running episode rewards.
        lengths: the sampler's array of running episode lengths.
        only_policy: the policy of every agent, where there is one.
    """

    def __init__(
        self,
        episode_id: int,
        env_index: int,
        rewards: np.ndarray,
        lengths: np.ndarray,
        *,
        only_policy: str | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.env_index = env_index
        self.policies: dict[Hashable, str] = {}
        self.user_data: dict[str, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self.last_infos: dict[Hashable, dict] = {}
        self._rewards, self._lengths, self._only_policy = rewards, lengths, only_policy

    def __repr__(self) -> str:
        where = f"episode_id={self.episode_id}, env_index={self.env_index}"
        return f"Episode({where}, length={self.length}, total_reward={self.total_reward})"

    @property
    def total_reward(self) -> float:
        """The sum of all agents' rewards so far, as the environment gave them."""
        return float(self._rewards[self.env_index])

    @property
    def length(self) -> int:
        """Environment steps so far."""
        return int(self._lengths[self.env_index])

    def policy_for(self, agent_id: Hashable) -> str | None:
        """The id of the policy that acts for an agent; None for one that has not appeared, where there are several."""
        return self.policies.get(agent_id, self._only_policy)

    def noted_metrics(self) -> dict[str, float]:
        """What callbacks noted in `custom_metrics`.

        Raises:
            ConfigError: something else than numbers by name.
        """
        noted = self.custom_metrics
        if isinstance(noted, Mapping):
            bad = [name for name, value in noted.items() if not (isinstance(name, str) and _is_number(value))]
            if not bad:
                return {name: float(value) for name, value in noted.items()}
            where, got = f"episode.custom_metrics[{bad[0]!r}]", noted[bad[0]]
        else:
            where, got = "episode.custom_metrics", noted
        raise ConfigError(
            "A custom metric that is no number.",
            where=f"config key 'callbacks', {where}",
            got=f"{got!r} ({type(got).__name__})",
            expected="a dict with strings as keys and numbers as values",
            fix="note numbers; what else is to be kept for the episode stands in episode.user_data",
        )

    def read_from(self, rewards: np.ndarray, lengths: np.ndarray) -> None:
        """The running rewards and lengths stand in these arrays from now on."""
        self._rewards, self._lengths = rewards, lengths

    def finished(self) -> Episode:
        """Itself, with numbers that stay as they are when its sub-environment goes on to the next episode."""
        self._rewards, self._lengths = self._rewards.copy(), self._lengths.copy()
        return self


def _is_number(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
