"""Random valid actions of any space, within the action mask if there is one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.errors import EnvError
from rollax.spaces import choices, walk

MASK = "action_mask"


class RandomActions:
    """A stream of random actions, determined by seed, spaces and masks.

    Args:
        seed: seed of the stream.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._spaces: dict[int, tuple[spaces.Space, spaces.Space]] = {}  # by identity: the space, and a seeded copy

    def draw(self, space: spaces.Space, obs: Any, where: str) -> Any:
        """Returns a random action that the observation's `action_mask` allows.

        Raises:
            EnvError: a mask of the wrong size, or one that allows nothing.
        """
        if id(space) not in self._spaces:
            mine = copy.deepcopy(space)
            mine.seed(self._seed)
            self._spaces[id(space)] = space, mine
        action = self._spaces[id(space)][1].sample()
        if not (isinstance(obs, dict) and MASK in obs):
            return action
        mask, widths = np.asarray(obs[MASK]).ravel(), choices(space)
        if len(mask) != sum(widths):
            raise EnvError(
                "An action mask of the wrong size.",
                where=where,
                got=f"{len(mask)} entries",
                expected=f"{sum(widths)}: one for each choice of each discrete action of {space}",
                fix="let the observation space's 'action_mask' be a Box or MultiBinary of that size",
            )
        allowed = []
        for part in np.split(mask, np.cumsum(widths)[:-1]):
            if not part.any():
                raise EnvError(
                    "An action mask that allows nothing.",
                    where=where,
                    got=mask,
                    expected="at least one 1 for each discrete action",
                    fix="leave one action valid, or end the episode instead of requesting an action",
                )
            allowed.append(int(self._random.choice(np.flatnonzero(part))))
        chosen = iter(allowed)
        return walk(lambda leaf, path, part: _with_choices(leaf, part, chosen), space, action)


def _with_choices(space: spaces.Space, action: Any, chosen: Iterator[int]) -> Any:
    """Returns a discrete action of these choices; other actions unchanged."""
    if isinstance(space, spaces.Discrete):
        return space.start + next(chosen)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + np.array([next(chosen) for _ in range(space.nvec.size)]).reshape(space.nvec.shape)
    return action
