"""Metrics of finished episodes, their summary over a window, and the types of results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import TypedDict

_MOST_KEPT = 1_000_000


@dataclass(slots=True)  # not frozen, because construction would take three times as long
class EpisodeMetrics:
    """One finished episode.

    Args:
        reward: the sum of all agents' rewards, as the environment gave them.
        length: environment steps.
        policy_rewards: policy id -> the returns of the trajectories for which the policy acted.
        custom_metrics: the numbers that callbacks set.
        env_index: the sub-environment.
    """

    reward: float
    length: int
    policy_rewards: dict[str, list[float]] = field(default_factory=dict)
    custom_metrics: dict[str, float] = field(default_factory=dict)
    env_index: int = 0


class EpisodeList(list[EpisodeMetrics]):
    """A list that is pickled as columns: pickling each episode would take longer than all rows of a fragment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_columns, tuple([getattr(episode, name) for episode in self] for name in EpisodeMetrics.__slots__)


def _from_columns(*columns: list[Any]) -> EpisodeList:
    return EpisodeList(map(EpisodeMetrics, *columns))


class FinishedEpisodes:
    """The episodes that have ended, and the returns of trajectories, until the metrics of their episodes are taken.

    If metrics are never taken, only the latest 1,000,000 episodes are kept.
    """

    def __init__(self) -> None:
        # Episode id -> number of a policy -> returns, of episodes that have not ended yet.
        self._returns: dict[int, dict[int, list[float]]] = {}
        self._ended: deque[tuple[float, int, dict[int, list[float]], dict[str, float], int]] = deque(maxlen=_MOST_KEPT)

    def add_trajectories(self, ids: np.ndarray, policies: np.ndarray, rewards: np.ndarray) -> None:
        """Adds [K] trajectories: the ids of their episodes, the numbers of their policies, and their returns."""
        for episode_id, number, reward in zip(ids.tolist(), policies.tolist(), rewards.tolist(), strict=True):
            self._returns.setdefault(episode_id, {}).setdefault(number, []).append(reward)

    def drop_trajectories(self, ids: np.ndarray) -> None:
        """Drops the trajectories of episodes that are dropped or do not count."""
        for episode_id in ids.tolist():
            self._returns.pop(episode_id, None)

    def add(
        self,
        ids: np.ndarray,
        env_index: np.ndarray,
        rewards: np.ndarray,
        lengths: np.ndarray,
        custom_metrics: dict[int, dict[str, float]],
    ) -> None:
        """Adds [K] episodes; `custom_metrics` is episode id -> metrics, for episodes that have any."""
        columns = (column.tolist() for column in (ids, env_index, rewards, lengths))
        for episode_id, index, reward, length in zip(*columns, strict=True):
            returns, custom = self._returns.pop(episode_id, {}), custom_metrics.get(episode_id, {})
            self._ended.append((reward, length, returns, custom, index))

    def take(self, policy_ids: Sequence[str]) -> list[EpisodeMetrics]:
        """Removes the episodes and returns their metrics; `policy_ids` are indexed by the numbers of policies."""
        ended, self._ended = self._ended, deque(maxlen=_MOST_KEPT)
        return [
            EpisodeMetrics(reward, length, {str(policy_ids[n]): own for n, own in returns.items()}, custom, index)
            for reward, length, returns, custom, index in ended
        ]


class EpisodeWindow:
    """The latest episodes, for smoothed means.

    Args:
        size: the number of episodes; if the current iteration has more, all of its episodes count.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._episodes: deque[EpisodeMetrics] = deque()

    def summary(self, new: Sequence[EpisodeMetrics]) -> dict[str, Any]:
        """Adds episodes, and returns the result keys about episodes; a mean over no episode is None."""
        self._episodes.extend(new)
        while len(self._episodes) > max(self._size, len(new)):
            self._episodes.popleft()
        return {**summarize(self._episodes), "episodes_this_iter": len(new)}

    def state(self) -> list[Any]:
        """The episodes that later summaries may count, at most `size`, as plain values for a checkpoint."""
        latest = list(self._episodes)[-self._size :]
        return [[e.reward, e.length, e.policy_rewards, e.custom_metrics] for e in latest]

    def set_state(self, state: Iterable[Sequence[Any]]) -> None:
        """Restores what `state` returned."""
        self._episodes = deque(EpisodeMetrics(*values) for values in state)


def summarize(episodes: Iterable[EpisodeMetrics]) -> EpisodeSummary:
    """Means and extremes over episodes; None without episodes."""
    episodes = list(episodes)
    rewards, lengths = [e.reward for e in episodes], [e.length for e in episodes]
    by_policy: dict[str, list[float]] = {}
    custom: dict[str, list[float]] = {}
    for episode in episodes:
        for policy_id, values in episode.policy_rewards.items():
            by_policy.setdefault(policy_id, []).extend(values)
        for name, value in episode.custom_metrics.items():
            custom.setdefault(name, []).append(value)
    return {
        "episode_reward_mean": _mean(rewards),
        "episode_reward_min": min(rewards, default=None),
        "episode_reward_max": max(rewards, default=None),
        "episode_len_mean": _mean(lengths),
        "policy_reward_mean": {policy_id: _mean(values) for policy_id, values in sorted(by_policy.items())},
        "custom_metrics": {f"{name}_mean": _mean(values) for name, values in sorted(custom.items())},
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


class Result(dict[str, Any]):
    """A dict with a short `repr`; it is a `TrainResult` or an `EvaluationResult` to type checkers."""

    def __repr__(self) -> str:
        name = "TrainResult" if "training_iteration" in self else "EvaluationResult"
        shown = {key: self[key] for key in _SHOWN if self.get(key) is not None}
        texts = [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in shown.items()]
        return f"{name}({', '.join(texts)}; dict(...) shows all {len(self)} keys)"


_SHOWN = (
    *("training_iteration", "timesteps_total", "time_total_s", "env_steps_per_s", "episodes"),
    *("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean", "evaluation"),
)
"""The keys in the `repr` of a result, where they have a value."""


class EpisodeSummary(TypedDict):
    """Means and extremes over episodes; None without episodes."""

    episode_reward_mean: float | None
    episode_reward_min: float | None
    episode_reward_max: float | None
    episode_len_mean: float | None
    policy_reward_mean: dict[str, float | None]
    custom_metrics: dict[str, float | None]


class EvaluationResult(TypedDict, extra_items=Any):
    """Means and extremes over the episodes of an evaluation, their number and rewards, and off-policy estimates.

    `policy_reward_mean` is policy id -> mean, `custom_metrics` is `<name>_mean` -> mean, and `off_policy_estimates` is
    policy id -> method -> `v_target`, `low`, `high` and so on.
    """

    episode_reward_mean: float
    episode_reward_min: float
    episode_reward_max: float
    episode_len_mean: float
    policy_reward_mean: dict[str, float]
    custom_metrics: dict[str, float]
    episodes: int
    episode_rewards: list[float]
    off_policy_estimates: dict[str, dict[str, dict[str, float | None]]]


class TrainResult(EpisodeSummary, extra_items=Any):
    """One training iteration; `rollax docs training` describes each key."""

    episodes_this_iter: int
    training_iteration: int
    timesteps_total: int
    timesteps_this_iter: int
    agent_timesteps_total: int
    time_this_iter_s: float
    time_total_s: float
    env_steps_per_s: float
    timers: dict[str, float]
    info: dict[str, Any]
    evaluation: EvaluationResult | None
