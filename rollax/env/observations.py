"""Checks on the observations of environments, whose notes are logged once.

Every observation is checked in bulk, and in the first episode of each sub-environment also singly and with its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.core import space_codec, trees
from rollax.core.space_codec import Where
from rollax.env.checks import FirstEpisodes, warn_once

stacked = partial(space_codec.stacked, note=warn_once)
as_columns = partial(space_codec.as_columns, note=warn_once)
check_bounds = partial(space_codec.check_bounds, note=warn_once)
check_observation = partial(space_codec.check_value, note=warn_once)


class ObservationChecks:
    """Checks the observations of sub-environments with one agent each."""

    def __init__(self, space: spaces.Space, num_envs: int) -> None:
        self._space = space
        self.first_episodes = FirstEpisodes(num_envs)

    def columns(self, obs: Any, count: int, where: Where) -> trees.Tree:
        """Columns of `count` rows from the environment; `EnvError` unless they belong to the space."""
        columns = as_columns(self._space, obs, count, where)
        if self.first_episodes.indices:
            check_bounds(self._space, columns, where)
        return columns

    def stacked(self, obs: Sequence[Any], env_index: np.ndarray, where: Where) -> trees.Tree:
        """Columns of single observations, one for each row; `env_index` holds the sub-environments of the rows."""
        watched = self.first_episodes.indices
        if watched:
            for row, index in enumerate(env_index.tolist()):
                if index in watched:
                    check_observation(self._space, obs[row], where(row))
        return stacked(self._space, obs, where)
