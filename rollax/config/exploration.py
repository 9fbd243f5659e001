"""The fields of algorithms that explore by chance actions."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, Field

from rollax.config.overruling import Overrules
from rollax.config.trainer import ProbabilityPoints
from rollax.schedules import Schedule


class EpsilonFields(BaseModel):
    """How the probability ε of any valid action in the place of the best one falls; see `EpsilonGreedy`."""

    initial_epsilon: float = Field(default=1.0, ge=0, le=1, description="ε at the first step")
    final_epsilon: float = Field(default=0.02, ge=0, le=1, description="ε after epsilon_timesteps")
    epsilon_timesteps: int = Field(default=10_000, ge=1, description="steps over which ε falls, linearly")
    epsilon_schedule: ProbabilityPoints | None = Field(
        default=None, description="[[timestep, ε], ...], linear in between; takes the place of the three before"
    )

    overrules: ClassVar[Overrules] = {("epsilon_schedule",): ("initial_epsilon", "final_epsilon", "epsilon_timesteps")}

    def epsilon(self) -> Schedule:
        """Timestep -> ε."""
        points = ((0, self.initial_epsilon), (self.epsilon_timesteps, self.final_epsilon))
        return Schedule(self.epsilon_schedule or points, where="config key 'epsilon_schedule'")
