"""A game of two agents in JAX, and the same game in NumPy: two walkers on a line, until they meet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rollax import JaxEnv, MultiAgentEnv, MultiAgentJaxEnv, Outcome, TimeLimit

AGENTS = ("ann", "bob")
_PLACES, _STEPS = 10, 30
OBSERVATIONS, ACTIONS = spaces.Box(1 - _PLACES, _PLACES - 1, (1,), np.float32), spaces.Discrete(3)


class JaxMeeting(MultiAgentJaxEnv):
    """Two walkers on a line, until they meet."""

    agents = AGENTS
    observation_space, action_space = OBSERVATIONS, ACTIONS

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        places = jax.random.choice(key, _PLACES, (2,), replace=False)
        return places, self._observe(places)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        moves = jnp.stack([action[agent] for agent in AGENTS]) - 1
        places = jnp.clip(state + moves, 0, _PLACES - 1)
        met = places[0] == places[1]
        return Outcome(places, self._observe(places), dict.fromkeys(AGENTS, jnp.where(met, 1.0, -0.1)), met)

    def _observe(self, places: jax.Array) -> dict[str, jax.Array]:
        distance = (places[1] - places[0])[None]
        return {"ann": distance, "bob": -distance}


class Meeting(MultiAgentEnv):
    """The same game in NumPy."""

    possible_agents = AGENTS
    observation_space, action_space = OBSERVATIONS, ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._places, self._t = self._rng.choice(_PLACES, 2, replace=False).tolist(), 0
        return self._observe(), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        moved = (place + int(action_dict[agent]) - 1 for place, agent in zip(self._places, AGENTS, strict=True))
        self._places = [min(max(place, 0), _PLACES - 1) for place in moved]
        self._t += 1
        met = self._places[0] == self._places[1]
        rewards = dict.fromkeys(AGENTS, 1.0 if met else -0.1)
        return self._observe(), rewards, {"__all__": met}, {"__all__": self._t >= _STEPS}, {}

    def _observe(self) -> dict[str, np.ndarray]:
        distance = self._places[1] - self._places[0]
        return {"ann": np.array([distance], np.float32), "bob": np.array([-distance], np.float32)}


def make_meeting(*, numpy: bool) -> JaxEnv | MultiAgentEnv:
    """Returns the game in JAX or in NumPy, with at most 30 steps an episode."""
    return Meeting() if numpy else TimeLimit(JaxMeeting(), _STEPS)
