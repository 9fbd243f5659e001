"""Maps the environment's rewards to the rewards of a policy: `clip_rewards`."""

from __future__ import annotations

from typing import Any

from rollax.core.trees import namespace


class RewardMap:
    """Maps rewards, in NumPy or JAX, to the rewards that a policy acts on and learns from.

    Args:
        clip_rewards: True keeps only the signs, a number bounds rewards to ± this number; None or False: no change.
    """

    def __init__(self, clip_rewards: bool | float | None) -> None:
        self.clip_rewards = clip_rewards
        self.settings = {"clip_rewards": clip_rewards}

    def __call__(self, rewards: Any) -> Any:
        bound = self.clip_rewards
        if not bound:
            return rewards
        xp = namespace(rewards)
        return xp.sign(rewards) if bound is True else xp.clip(rewards, -bound, bound)
