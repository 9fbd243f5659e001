"""Rewards with a similar scale in all tasks: `normalize_rewards` of on-policy algorithms."""

from __future__ import annotations

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core.running_statistics import RunningMoments
from rollax.policy.algorithm import Algorithm
from rollax.policy.base_algorithm import Values

_RETURNS = "returns"
_EPSILON, _LIMIT = 1e-8, 10.0


class NormalizedRewards(Algorithm):
    """An algorithm that can learn from normalized rewards.

    Source: VecNormalize of Stable-Baselines3 (Raffin et al., 2021): the reward is
        clip(r / sqrt(Var[R] + 1e-8), -10, 10),  R ← γ R + r, which begins at 0 with each trajectory.
    Deviations: the variance includes all rewards of a fragment before they are divided, and has no initial estimate.
    """

    def make_running_statistics(self) -> dict[str, RunningMoments]:
        if not self.config.normalize_rewards:
            return super().make_running_statistics()
        from rollax.policy.running_returns import RunningReturns  # loaded only where it is used

        returns = RunningReturns(self.config.gamma, column=SampleBatch.REWARDS)
        return {**super().make_running_statistics(), _RETURNS: returns}

    def changes_rows(self) -> bool:
        return self.config.normalize_rewards

    def prepare(self, fragment: Fragment, values: Values) -> None:
        if self.config.normalize_rewards:
            returns, rewards = values.statistics[_RETURNS], fragment[SampleBatch.REWARDS]
            scaled = rewards / np.sqrt(returns.variance + _EPSILON)
            fragment[SampleBatch.REWARDS] = np.clip(scaled, -_LIMIT, _LIMIT).astype(np.float32)
        super().prepare(fragment, values)
