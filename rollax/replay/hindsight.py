"""`HindsightDraw`: transitions of which most get a goal that their trajectory reached later."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, Self

import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.config import TrainerConfig
from rollax.core import trees
from rollax.core.spaces import DESIRED
from rollax.env.goals import GoalFunctions
from rollax.env.registry import EnvContext, env_creator
from rollax.errors import ConfigError
from rollax.policy.replayed import Draw
from rollax.replay.replay import Replay

NEXT_ACHIEVED = "next_achieved_goal"
"""The column with the goal that each step achieved: also after a termination, where a buffer has no observation."""


@dataclass(frozen=True)
class HindsightDraw(Draw):
    """Transitions for one step; of k + 1 rows, k get another goal on average.

    The new goal was achieved by the trajectory in this row or a later stored row: in any of these rows, with equal
    probability (`future`), or in the last of them (`final`). The goal is replaced in `obs` and `new_obs`, the reward is
    computed again, and `discounts` are 0 if the new goal terminates the episode. A row that terminated with its own
    goal stays terminated, because no observation after it is stored.

    Source: Andrychowicz et al. (2017), "Hindsight experience replay", arXiv:1707.01495, sections 3.3 and 4.5.
    Deviations: goals are drawn with the rows, not stored with copies of them.

    Args:
        goal_space: the space of one goal.
        k: goals per original goal.
        strategy: where the goals come from.
        functions: compute rewards and terminations; `in_run` adds them.
    """

    _: KW_ONLY
    goal_space: spaces.Space
    k: int
    strategy: Literal["future", "final"] = "future"
    functions: GoalFunctions | None = None
    columns: tuple[str, ...] = (NEXT_ACHIEVED,)

    def in_run(self, config: TrainerConfig) -> Self:
        if config.env is None:
            raise ConfigError.missing(
                "environment", "config key 'env', with hindsight_goals", "env, whose compute_reward is called"
            )
        functions = GoalFunctions(env_creator(config.env), EnvContext(config.env_config), self.goal_space)
        return replace(self, functions=functions)

    def draw(self, replay: Replay, count: int, rng: np.random.Generator, beta: float) -> SampleBatch:
        assert self.functions is not None
        slots = replay.draw_slots(count, rng)
        batch = replay.transitions(slots, beta)
        rows = np.flatnonzero(rng.random(count) < self.k / (self.k + 1))
        steps = ahead = replay.rows_ahead(slots[rows])
        if self.strategy == "future":
            steps = rng.integers(ahead + 1)
        goals = replay.read(NEXT_ACHIEVED, replay.slots_ahead(slots[rows], steps))
        for obs in (batch[SampleBatch.OBS], batch[SampleBatch.NEW_OBS]):
            trees.put(obs[DESIRED], rows, goals)
        achieved = trees.index(batch[NEXT_ACHIEVED], rows)
        batch[SampleBatch.REWARDS][rows] = self.functions.rewards(achieved, goals)
        batch[SampleBatch.DISCOUNTS][rows[self.functions.terminated(achieved, goals)]] = 0
        return batch
