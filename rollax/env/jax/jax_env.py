"""`JaxEnv`: an environment as two pure functions that JAX compiles, and `MultiAgentJaxEnv`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium import Space


class Outcome(NamedTuple):
    """The result of a step.

    Args:
        state: the next state, in the structure, shapes and dtypes of the state that `reset` returns.
        obs: the observation of that state, also where the episode has ended; by agent if there are several agents.
        reward: [] the reward of the step; by agent if there are several agents.
        terminated: [] bool, the episode ended in a terminal state.
        truncated: [] bool, the episode was cut off; its last observation is bootstrapped.
    """

    state: Any
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any = False


class JaxEnv(ABC):
    """An environment of one agent in JAX. Its methods are pure functions: JAX traces and vectorizes them.

    Everything that changes is in `state`, a tree of arrays; attributes of the environment are constants. `step` resets
    nothing: rollax begins the next episode of a sub-environment after the last observation of its episode.

    Attributes:
        observation_space, action_space: Gymnasium spaces.
    """

    observation_space: Space
    action_space: Space

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode; `key` is its source of randomness."""

    @abstractmethod
    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        """The outcome of `action`, which has the structure of the action space; `key` is new at each step."""

    def render(self, state: Any) -> np.ndarray | None:
        """[height, width, 3] uint8: a frame of one state, in NumPy; None if it cannot be drawn."""
        return None


class MultiAgentJaxEnv(JaxEnv):
    """An environment of several agents in JAX. All of them act at every step, from the first to the last of an episode.

    Observations, actions and rewards are dicts by agent id; an episode ends for all agents at once.

    Attributes:
        agents: the ids of all agents.
        observation_space, action_space: the spaces of every agent, if they are equal.
        observation_spaces, action_spaces: the spaces by agent id, if they differ.
    """

    agents: tuple[str, ...]
    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]


class JaxWrapper(JaxEnv):
    """Base class of wrappers of an environment of one or several agents; attributes come from the environment inside.

    Args:
        env: the environment inside.
    """

    def __init__(self, env: JaxEnv) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


def agents_of(env: JaxEnv) -> tuple[str, ...] | None:
    """The ids of the agents; None for an environment of one agent, which has no id."""
    while isinstance(env, JaxWrapper):
        env = env.env
    return tuple(getattr(env, "agents", ())) if isinstance(env, MultiAgentJaxEnv) else None
