"""Repeated actions and stacks of observations, for environments in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.env.jax.jax_env import JaxEnv, JaxWrapper, Outcome, agents_of
from rollax.env.jax.sub_environments import to_dtypes
from rollax.env.multi_agent.multi_agent_env import space_of
from rollax.env.stacking import begun, pushed, stacked_space


class ActionRepeat(JaxWrapper):
    """Takes each action a number of times, or until the episode ends; the reward is the sum over these steps.

    Args:
        env: the environment.
        times: steps for which each action is taken.
    """

    def __init__(self, env: JaxEnv, times: int) -> None:
        super().__init__(env)
        self._times = times

    def __repr__(self) -> str:
        return f"ActionRepeat({self.env!r}, {self._times})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.env.reset(key)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        def step(outcome: Outcome, key: jax.Array) -> tuple[Outcome, None]:
            after = _arrays(self.env.step(outcome.state, action, key))
            after = after._replace(reward=jax.tree.map(jnp.add, outcome.reward, after.reward))
            over = outcome.terminated | outcome.truncated
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), outcome, after), None

        keys = jax.random.split(key, self._times)
        outcome = _arrays(self.env.step(state, action, keys[0]))
        return lax.scan(step, outcome, keys[1:])[0]

    def render(self, state: Any) -> np.ndarray | None:
        return self.env.render(state)


class FrameStack(JaxWrapper):
    """Stacks the latest observations; see `rollax.env.stacking`. The state has the stacks too.

    Args:
        env: the environment, of one agent or of several.
        count: k, observations in a stack.
    """

    def __init__(self, env: JaxEnv, count: int) -> None:
        super().__init__(env)
        self._count = count
        agents = agents_of(env)
        if agents is None:
            self._space, self.observation_space = env.observation_space, stacked_space(env.observation_space, count)
        else:
            by_agent = {agent: space_of(env, "observation_space", agent) for agent in agents}
            self._space = spaces.Dict(by_agent)
            self.observation_spaces = {agent: stacked_space(space, count) for agent, space in by_agent.items()}

    def __repr__(self) -> str:
        return f"FrameStack({self.env!r}, {self._count})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        stacks = begun(self._space, self._count, to_dtypes(self._space, obs))
        return (state, stacks), stacks

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        inner, stacks = state
        outcome = self.env.step(inner, action, key)
        stacks = pushed(self._space, self._count, stacks, to_dtypes(self._space, outcome.obs))
        return outcome._replace(state=(outcome.state, stacks), obs=stacks)

    def render(self, state: Any) -> np.ndarray | None:
        return self.env.render(state[0])


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)
