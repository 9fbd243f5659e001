"""`RunStatistics`: the logged numbers of a run, over its iterations, for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from rollax.runs.results import number_in

EPISODES = 100
"""Least number of ended episodes for a judgement about the course of the score."""
LEAST = 10
"""Least number of iterations with a statistic for a judgement about its course."""


class Series(NamedTuple):
    """A statistic over the iterations in which it is a finite number: iterations [K] and values [K]."""

    iterations: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def last(self, share: float = 0.5) -> Series:
        """Returns the last `share` of the entries, but at least `LEAST` entries, or all if there are fewer."""
        count = max(int(np.ceil(len(self.values) * share)), min(LEAST, len(self.values)))
        return Series(self.iterations[-count:], self.values[-count:]) if count else self

    def where(self) -> str:
        """Returns the iterations as text."""
        first, last = int(self.iterations[0]), int(self.iterations[-1])
        return f"iteration {first}" if first == last else f"iterations {first} to {last}"


@dataclass(eq=False)
class RunStatistics:
    """The results of a run so far, with its settings.

    Args:
        algorithm: the name of the algorithm, as in `config.json`.
        env: the id of the environment; None if it has none.
        config: key -> value, as in `config.json`.
        results: the results of the iterations; some may be missing.
        stop: the stop conditions of the run.
        ended: whether the run has ended; false while it goes on.
        has_best: whether the run folder has the best model; None if that is not known.
        action_spaces: policy id -> action space, as far as they are known.
    """

    algorithm: str
    env: str | None
    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    _: KW_ONLY
    stop: Mapping[str, float] = field(default_factory=dict)
    ended: bool = True
    has_best: bool | None = None
    action_spaces: Mapping[str, Space] = field(default_factory=dict)

    def series(self, *path: str) -> Series:
        """Returns the numbers at a path in the nested results."""
        points = [(number_in(result, "training_iteration"), number_in(result, *path)) for result in self.results]
        known = np.array([point for point in points if None not in point], np.float64).reshape(-1, 2)
        return Series(known[:, 0].astype(np.int64), known[:, 1])

    def learner(self, policy: str, name: str) -> Series:
        """Returns a statistic of the loss of a policy."""
        return self.series("info", "learner", policy, name)

    @cached_property
    def policies(self) -> list[str]:
        """The policies that have learned."""
        found: dict[str, None] = {}
        for result in self.results:
            learner = result.get("info", {}).get("learner", {})
            found |= dict.fromkeys(name for name, values in learner.items() if isinstance(values, Mapping))
        return list(found)

    def has(self, key: str) -> bool:
        """Whether the algorithm has a config key."""
        return key in self.config

    def number(self, key: str, default: float = 0.0) -> float:
        """Returns the value of a config key that is a number, else the default."""
        value = self.config.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    @property
    def horizon(self) -> float:
        """1 / (1 - γ), the number of steps that rewards count for; infinite for γ = 1."""
        gamma = self.number("gamma", 0.99)
        return 1 / (1 - gamma) if gamma < 1 else np.inf

    @property
    def steps(self) -> float:
        """Environment steps so far."""
        return next(iter(self.series("timesteps_total").values[-1:]), 0.0)

    @cached_property
    def score(self) -> Series:
        """The mean reward of training episodes."""
        return self.series("episode_reward_mean")

    @cached_property
    def length(self) -> float:
        """The mean length of the last episodes; 0 if none has ended."""
        lengths = self.series("episode_len_mean").values
        return float(lengths[-1]) if len(lengths) else 0.0

    @cached_property
    def _spreads(self) -> np.ndarray:
        """[K] the differences between the best and the worst episode, of each iteration with a score."""
        highest, lowest = self.series("episode_reward_max").values, self.series("episode_reward_min").values
        return highest - lowest if len(highest) == len(lowest) else np.zeros(0)

    @cached_property
    def first_spread(self) -> float:
        """The largest difference between the best and the worst episode of an iteration, of the first 5 iterations."""
        return float(self._spreads[:5].max(initial=0.0))

    def is_clear(self, gain: float) -> bool:
        """Whether a gain of the score exceeds half of the median difference between the best and the worst episode."""
        return bool(len(self._spreads)) and gain > max(0.0, 0.5 * float(np.median(self._spreads)))

    @property
    def has_score(self) -> bool:
        """Whether enough episodes have ended to see whether the score rises."""
        return float(self.series("episodes_this_iter").values.sum()) >= EPISODES

    @cached_property
    def gain(self) -> float:
        """The mean score of the last fifth of the run, less that of the first tenth; 0 with fewer than two scores."""
        values = self.score.values
        if len(values) < 2:
            return 0.0
        return float(values[-max(1, len(values) // 5) :].mean() - values[: max(1, len(values) // 10)].mean())

    @property
    def has_improved(self) -> bool:
        """Whether the gain exceeds a quarter of the first episodes' spread."""
        return self.gain > 0.25 * self.first_spread

    @cached_property
    def is_solved(self) -> bool:
        """Whether the last score reaches the goal of the run, or the threshold of the environment in Gymnasium."""
        goals = [self.stop[name] for name in ("episode_reward_mean", "evaluation_reward_mean") if name in self.stop]
        spec = spec_of(self.env)
        goals += [] if spec is None or spec.reward_threshold is None else [spec.reward_threshold]
        scores = [self.score.values, self.series("evaluation", "episode_reward_mean").values]
        return any(len(values) and values[-1] >= goal for goal in goals for values in scores)

    @cached_property
    def value_scale(self) -> float:
        """Approximately the largest value of a state: the largest |reward| of an episode, and more for a large γ.

        If 1 / (1 - γ) exceeds the smallest mean episode length, the reward is multiplied by the ratio of the two.
        """
        extremes = [self.series(f"episode_reward_{name}").values for name in ("max", "min")]
        largest = max((float(np.abs(values).max()) for values in extremes if len(values)), default=0.0)
        lengths = self.series("episode_len_mean").values
        shortest = float(lengths.min()) if len(lengths) else np.inf
        return largest * max(1.0, min(self.horizon, 1e6) / max(shortest, 1.0))

    @property
    def typical_value(self) -> float:
        """Approximate value of a state in the last episodes: mean reward of a step · min(length, 1 / (1 - γ))."""
        if not len(self.score) or not self.length:
            return 0.0
        return abs(self.score.values[-1]) / self.length * min(self.length, self.horizon)

    @property
    def scales_rewards(self) -> bool:
        """Whether losses and values are in other units than rewards."""
        names = {name for policy in self.policies for name in self._names(policy)}
        return bool(self.config.get("normalize_rewards")) or "reward_scale" in names

    def _names(self, policy: str) -> set[str]:
        return set(self.results[-1].get("info", {}).get("learner", {}).get(policy) or {}) if self.results else set()


def spec_of(env: str | None) -> EnvSpec | None:
    """Returns the entry of an environment in Gymnasium's registry; None if it has none."""
    return gymnasium.registry.get(env or "")
