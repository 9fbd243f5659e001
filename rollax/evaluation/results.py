"""The types of the results of `train()` and `evaluate()`. Callbacks may add further keys."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class EpisodeSummary(TypedDict):
    """Means and extremes over episodes; None where there is no episode."""

    episode_reward_mean: float | None
    episode_reward_min: float | None
    episode_reward_max: float | None
    episode_len_mean: float | None
    policy_reward_mean: dict[str, float | None]
    custom_metrics: dict[str, float | None]


class EvaluationResult(TypedDict, extra_items=Any):
    """Greedy episodes: means and extremes, their number, and the reward of each."""

    episode_reward_mean: float
    episode_reward_min: float
    episode_reward_max: float
    episode_len_mean: float
    policy_reward_mean: dict[str, float]
    custom_metrics: dict[str, float]
    episodes: int
    episode_rewards: list[float]


class TrainResult(EpisodeSummary, extra_items=Any):
    """One training iteration; docs/training.md describes each key."""

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
