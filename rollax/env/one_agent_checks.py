"""Checks on sub-environments of one agent each: in full during each one's first episode, in bulk always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from rollax import trees
from rollax.env.checks import FirstEpisodes, Where
from rollax.env.observations import as_columns, check_bounds, check_observation, stacked


class OneAgentChecks:
    """Turns observations into columns of the space's dtypes.

    Args:
        space: of the observations.
        num_envs: how many sub-environments there are.
    """

    def __init__(self, space: Space, num_envs: int) -> None:
        self._space = space
        self.first_episodes = FirstEpisodes(num_envs)

    def columns(self, obs: Any, count: int, where: Where) -> trees.Tree:
        """Those that the environment made columns of itself.

        Args:
            obs: the columns.
            count: of how many rows.
            where: names a row.
        Raises:
            EnvError: they are not what the space says.
        """
        columns = as_columns(self._space, obs, count, where)
        if self.first_episodes.indices:
            check_bounds(self._space, columns, where)
        return columns

    def stacked(self, obs: Sequence[Any], env_index: np.ndarray, where: Where) -> trees.Tree:
        """The same of single observations.

        Args:
            obs: one for each row.
            env_index: the sub-environment of each row.
            where: names a row.
        """
        watched = self.first_episodes.indices
        if watched:
            for row, index in enumerate(env_index.tolist()):
                if index in watched:
                    check_observation(self._space, obs[row], where(row))
        return stacked(self._space, obs, where)
