"""`Episode`: the view of one running episode for callbacks, policy mappings and policies."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from rollax.core.other_names import OtherNamesOfEpisode
from rollax.errors import ConfigError


class Episode(OtherNamesOfEpisode):
    """A running episode of one sub-environment, for callbacks and policies.

    Args:
        episode_id: unique across workers and time.
        env_index: the sub-environment.
        table: columns `reward` and `length` with one entry per sub-environment.
        only_policy: the policy of all agents, if there is only one.
    """

    def __init__(
        self, episode_id: int, env_index: int, table: Mapping[Any, Any], *, only_policy: str | None = None
    ) -> None:
        self.episode_id = episode_id
        self.env_index = env_index
        self.policies: dict[Hashable, str] = {}
        self.user_data: dict[str, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self.last_infos: dict[Hashable, dict] = {}
        self._table, self._row, self._only_policy = table, env_index, only_policy

    def __repr__(self) -> str:
        where = f"episode_id={self.episode_id}, env_index={self.env_index}"
        return f"Episode({where}, length={self.length}, total_reward={self.total_reward})"

    @property
    def total_reward(self) -> float:
        """The sum of all agents' rewards so far, as the environment returned them."""
        return float(self._table["reward"][self._row])

    @property
    def length(self) -> int:
        """Environment steps so far."""
        return int(self._table["length"][self._row])

    def policy_for(self, agent_id: Hashable) -> str | None:
        """The id of an agent's policy; None for an agent that has not appeared yet, if there are several policies."""
        return self.policies.get(agent_id, self._only_policy)

    def noted_metrics(self) -> dict[str, float]:
        """The custom metrics as floats; raises ConfigError unless they are a dict from names to numbers."""
        noted = self.custom_metrics
        if isinstance(noted, Mapping):
            bad = [name for name, value in noted.items() if not (isinstance(name, str) and _is_number(value))]
            if not bad:
                return {name: float(value) for name, value in noted.items()}
            where, got = f"episode.custom_metrics[{bad[0]!r}]", noted[bad[0]]
        else:
            where, got = "episode.custom_metrics", noted
        raise ConfigError(
            "A custom metric is not a number.", f"config key 'callbacks', {where}", f"{got!r} ({type(got).__name__})"
        ).expected("a dict with strings as keys and numbers as values", "keep anything else in episode.user_data")

    def detach(self) -> None:
        """Keeps the current reward and length, also when another episode begins in the sub-environment."""
        self._table, self._row = {"reward": [self.total_reward], "length": [self.length]}, 0


def _is_number(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):  # OverflowError: an integer beyond float64
        return False
    return True
