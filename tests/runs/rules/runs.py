"""Results of runs, made by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from rollax.runs.rules.statistics import RunStatistics

Value = float | Callable[[int], float | None] | None


def at(value: Value, iteration: int) -> float | None:
    return value(iteration) if callable(value) else value


def made(
    iterations: int,
    statistics: Mapping[str, Value],
    *,
    score: Value = lambda i: 20.0 + i,
    spread: float = 20.0,
    config: Mapping[str, Any] | None = None,
    replay: Mapping[str, Value] | None = None,
    queue: Mapping[str, Value] | None = None,
    timers: Mapping[str, Value] | None = None,
    evaluation: Value = None,
    env: str = "A-v0",
    **others: Any,
) -> RunStatistics:
    """A run of 1000 steps and 10 episodes of 100 steps per iteration, whose score rises by 1 in each.

    Values are constant, or functions of the iteration, which begins at 1.
    """
    changes = {name: others.pop(name) for name in ("episode_len_mean", "episodes_this_iter") if name in others}
    results = []
    for i in range(1, iterations + 1):
        mean, greedy = at(score, i), at(evaluation, i)
        info: dict[str, Any] = {
            "learner": {"default_policy": {name: at(value, i) for name, value in statistics.items()}}
        }
        for name, part in (("replay", replay), ("queue", queue)):
            if part is not None:
                info[name] = {key: at(value, i) for key, value in part.items()}
        results.append(
            {
                "training_iteration": i,
                "timesteps_total": 1000 * i,
                "timesteps_this_iter": 1000,
                "episode_reward_mean": mean,
                "episode_reward_max": None if mean is None else mean + spread / 2,
                "episode_reward_min": None if mean is None else mean - spread / 2,
                "evaluation": None if greedy is None else {"episode_reward_mean": greedy},
                "timers": {key: at(value, i) for key, value in (timers or {}).items()},
                "info": info,
                **{
                    key: at(value, i)
                    for key, value in {"episode_len_mean": 100.0, "episodes_this_iter": 10, **changes}.items()
                },
            }
        )
    return RunStatistics("PPO", env, {"gamma": 0.99, "lr": 3e-4, **(config or {})}, results, **others)


def each_case(cases: Mapping[str, Sequence[Any]], size: int) -> list[Any]:
    """A parameter for each case of so many parts, after the name of its rule; what is no tuple is its only part."""
    return [
        pytest.param(name, *parts, id=f"{name}-{i}")
        for name, some in cases.items()
        for i, case in enumerate(some)
        if len(parts := case if isinstance(case, tuple) else (case,)) == size
    ]
