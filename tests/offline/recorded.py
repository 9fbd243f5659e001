"""Recorded data in lists, for tests of learning from recorded data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from rollax import SampleBatch
from rollax.offline.dataset import DatasetReader, RecordedTrajectory
from rollax.offline.writer import DatasetWriter

OBSERVATIONS, ACTIONS = Box(-1e9, 1e9, (2,), np.float32), Discrete(3)


class ListReader(DatasetReader):
    """Trajectories in a list; one space for all policies."""

    def __init__(
        self,
        trajectories: Sequence[RecordedTrajectory],
        observation_space: Space = OBSERVATIONS,
        action_space: Space = ACTIONS,
        **header: Any,
    ) -> None:
        policies = dict.fromkeys(trajectory.policy_id for trajectory in trajectories)
        self.observation_spaces = dict.fromkeys(policies, observation_space)
        self.action_spaces = dict.fromkeys(policies, action_space)
        self.header, self.broken = header, []
        self.actions_of = header.pop("actions_of", "environment")
        self.opened = 0
        self._trajectories = trajectories

    def trajectories(self):
        self.opened += 1
        return iter(self._trajectories)


def trajectory(
    number: int, steps: int, end: str = "terminated", agent_id: Any = "agent0", policy_id: str = "default_policy"
) -> RecordedTrajectory:
    """Step t of trajectory k has the observation [k, t], the action t % 3 and the reward t + 1."""
    t = np.arange(steps + 1)
    return RecordedTrajectory(
        {
            "obs": np.stack([np.full(steps + 1, number), t], axis=1).astype(np.float32),
            "actions": t[:-1] % 3,
            "rewards": (t[:-1] + 1).astype(np.float32),
        },
        terminated=end == "terminated",
        truncated=end == "truncated",
        episode_id=str(number),
        agent_id=agent_id,
        policy_id=policy_id,
        where=f"list, line {number + 1}",
    )


def written(
    folder: Any, trajectories: Iterable[RecordedTrajectory], spaces: Any = (OBSERVATIONS, ACTIONS), **settings: Any
) -> list[Path]:
    """Writes a data set into a folder; returns the paths of its files."""
    with DatasetWriter(folder, *spaces, **settings) as writer:
        for one in trajectories:
            writer.write(one)
    return writer.paths


def rarely_rewarded(paying: np.ndarray) -> SampleBatch:
    """512 episodes of one step in random states: `paying` [S] has the rewarded one of two actions, in 30 % of rows."""
    rng = np.random.default_rng(0)
    obs = rng.integers(len(paying), size=512)
    actions = np.where(rng.random(512) < 0.3, paying[obs], 1 - paying[obs])
    rewards, zeros = (actions == paying[obs]).astype(np.float32), np.zeros(512, np.float32)
    ends = {"new_obs": obs, "discounts": zeros, "weights": zeros + 1}
    return SampleBatch({"obs": obs, "actions": actions, "rewards": rewards, **ends})
