"""Gymnasium's FrozenLake in JAX: a grid world of letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.envs.toy_text.frozen_lake import MAPS

from rollax.env.jax.jax_env import JaxEnv, Outcome
from rollax.errors import EnvError

_MOVES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]], np.int32)  # left, down, right, up


class FrozenLake(JaxEnv):
    """Walk from S to G over frozen fields F, without falling into a hole H; G and H end the episode.

    Source: Gymnasium's FrozenLake-v1, with its arguments. With probability `success_rate` the agent goes in the
        direction of the action, otherwise in one of the two directions beside it; at the border it stays.

    The state is [2] int32, row and column; the observation is row · columns + column.

    Args:
        desc: the rows of the grid, of the letters S, F, H and G, with at least one S; None for `map_name`.
        map_name: "4x4" or "8x8".
        is_slippery: whether the agent may go in another direction.
        success_rate: the probability of the action's direction if `is_slippery`.
        reward_schedule: the rewards at G, at H, and elsewhere.
    Raises:
        EnvError: a grid with other letters, with rows of different lengths or without S, or an unknown `map_name`.
    """

    def __init__(
        self,
        desc: Sequence[str] | None = None,
        map_name: str = "4x4",
        is_slippery: bool = True,
        success_rate: float = 1.0 / 3.0,
        reward_schedule: Sequence[float] = (1.0, 0.0, 0.0),
    ) -> None:
        rows = list(MAPS.get(map_name, ()) if desc is None else desc)
        if not rows or {len(row) for row in rows} != {len(rows[0])} or not {"S"} <= set("".join(rows)) <= set("SFHG"):
            name, got = ("map_name", map_name) if desc is None else ("desc", desc)
            raise EnvError("This is not a grid of a frozen lake.", name, got).expected(
                "rows of equal length with the letters S, F, H and G, one S or more", f"use a map of {', '.join(MAPS)}"
            )
        grid = np.array([list(row) for row in rows])
        self._shape = grid.shape
        self._starts = np.argwhere(grid == "S").astype(np.int32)
        at_goal, at_hole, elsewhere = reward_schedule
        self._rewards = np.where(grid == "G", at_goal, np.where(grid == "H", at_hole, elsewhere)).astype(np.float32)
        self._ends = (grid == "G") | (grid == "H")
        aside = (1.0 - success_rate) / 2.0
        self._probabilities = np.array([aside, success_rate, aside] if is_slippery else [0.0, 1.0, 0.0], np.float32)
        self.observation_space = spaces.Discrete(grid.size)
        self.action_space = spaces.Discrete(4)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.asarray(self._starts)[jax.random.randint(key, (), 0, len(self._starts))]
        return state, self._observed(state)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        turned = jax.random.choice(key, jnp.arange(-1, 2), p=jnp.asarray(self._probabilities))
        moved = state + jnp.asarray(_MOVES)[(action + turned) % 4]
        state = jnp.clip(moved, 0, jnp.array(self._shape, jnp.int32) - 1)
        at = state[0], state[1]
        return Outcome(state, self._observed(state), jnp.asarray(self._rewards)[at], jnp.asarray(self._ends)[at])

    def _observed(self, state: jax.Array) -> jax.Array:
        return state[0] * self._shape[1] + state[1]
