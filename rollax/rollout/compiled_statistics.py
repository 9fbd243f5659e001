"""`CompiledStatistics`: the running statistics of a policy between compiled rounds of sampling and learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rollax.batch import SampleBatch
from rollax.core.running_statistics import RunningMoments
from rollax.policy.running_returns import RunningReturns
from rollax.policy.traced_moments import TracedReturns

Statistics = dict[str, TracedReturns]


class CompiledStatistics:
    """Running statistics as functions that JAX traces, for statistics for which `why_only_on_host` is empty.

    Within a compiled call the statistics are float32. After it, the statistics on the host add up the same rewards in
    float64.

    Args:
        moments: the statistics on the host.
        slots: [R] the slots of the trajectories that run at the same time.
    """

    def __init__(self, moments: Mapping[str, RunningMoments], slots: NDArray[np.integer]) -> None:
        self._returns = {name: one for name, one in moments.items() if isinstance(one, RunningReturns)}
        self._slots = slots

    def current(self, trajectories: NDArray[np.integer]) -> Statistics:
        """The statistics on the host; `trajectories` [R] are the ids of the running trajectories."""
        return {name: TracedReturns.of(one, self._slots, trajectories) for name, one in self._returns.items()}

    # Traced by JAX.

    def seen(self, statistics: Statistics, rewards: jax.Array, over: jax.Array) -> Statistics:
        """The statistics after T steps with [R, T] rewards, where [R, T] `over` is true at the ends of episodes."""
        returns = self._returns
        return {
            name: one.with_rewards(rewards, over & returns[name].episodic, returns[name].gamma)
            for name, one in statistics.items()
        }

    def coefficients(self, statistics: Statistics) -> dict[str, Any]:
        """As `ModelPolicy.coefficients_of_statistics`."""
        return {"running_statistics": {name: one.summary() for name, one in statistics.items()}} if statistics else {}


def why_only_on_host(moments: Mapping[str, RunningMoments]) -> str:
    """Why running statistics cannot be updated on the device; empty if they can."""
    for name, one in moments.items():
        if type(one) is not RunningReturns or one.column != SampleBatch.REWARDS:
            return f"running statistics {name!r}, which are not of sampled rewards"
    return ""
