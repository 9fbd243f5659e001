"""The fields of algorithms whose value function may see all agents."""

from __future__ import annotations

from gymnasium.spaces import Space
from pydantic import BaseModel, ConfigDict, Field


class CentralizedCriticFields(BaseModel):
    """Whether it does, and what it sees; see `CentralCritic`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    centralized_critic: bool = Field(
        default=False,
        description="whether the value function sees what all agents observe and what the others do; the agents still "
        "act on their own observations",
    )
    critic_space: Space | None = Field(
        default=None, description="what a centralized critic sees; None asks the environment, as it should be"
    )
