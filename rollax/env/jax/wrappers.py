"""Time limits, repeated actions and stacks of observations, for environments in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax

from rollax.core.spaces import check_space
from rollax.env.jax.jax_env import JaxEnv, JaxWrapper, Outcome, agents_of
from rollax.env.jax.sub_environments import to_dtypes
from rollax.env.multi_agent.multi_agent_env import space_of
from rollax.env.stacking import begun, pushed, stacked_space
from rollax.errors import ConfigError


class TimeLimit(JaxWrapper):
    """Truncates episodes after a number of steps.

    Args:
        env: the environment, of one agent or of several.
        max_episode_steps: 1 or more.
    Raises:
        ConfigError: a limit that is not a positive integer.
    """

    def __init__(self, env: JaxEnv, max_episode_steps: int) -> None:
        if isinstance(max_episode_steps, bool) or not isinstance(max_episode_steps, int) or max_episode_steps < 1:
            raise ConfigError.is_not(
                "The time limit", "a positive integer", f"TimeLimit of {env!r}, max_episode_steps", max_episode_steps
            ).fix("leave the limit out for episodes that end by themselves")
        super().__init__(env)
        self.max_episode_steps = max_episode_steps

    def __repr__(self) -> str:
        return f"TimeLimit({self.env!r}, {self.max_episode_steps})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        return (state, jnp.int32(0)), obs

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        inner, steps = state
        outcome = self.env.step(inner, action, key)
        steps = steps + 1
        truncated = jnp.logical_or(outcome.truncated, steps >= self.max_episode_steps)
        return outcome._replace(state=(outcome.state, steps), truncated=truncated)

    def render(self, state: Any) -> np.ndarray | None:
        return self.env.render(state[0])


class JaxActionRepeat(JaxWrapper):
    """Takes each action a number of times, or until the episode ends; the reward is the sum over these steps.

    Args:
        env: the environment.
        times: steps for which each action is taken.
    """

    def __init__(self, env: JaxEnv, times: int) -> None:
        super().__init__(env)
        self._times = times

    def __repr__(self) -> str:
        return f"JaxActionRepeat({self.env!r}, {self._times})"

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


class JaxFrameStack(JaxWrapper):
    """Stacks the latest observations; see `rollax.env.stacking`. The state contains the stacks.

    Args:
        env: the environment, of one agent or of several.
        count: k, observations in a stack.
    """

    def __init__(self, env: JaxEnv, count: int) -> None:
        super().__init__(env)
        self.count = count
        agents = agents_of(env)
        if agents is None:
            self._space = self._checked(getattr(env, "observation_space", None))
            self.observation_space = stacked_space(self._space, count)
        else:
            by_agent = {agent: self._checked(space_of(env, "observation_space", agent)) for agent in agents}
            self._space = spaces.Dict(by_agent)
            self.observation_spaces = {agent: stacked_space(space, count) for agent, space in by_agent.items()}

    def _checked(self, space: Any) -> spaces.Space:
        check_space(space, f"{self.env!r}.observation_space")
        return space

    def __repr__(self) -> str:
        return f"JaxFrameStack({self.env!r}, {self.count})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, obs = self.env.reset(key)
        stacks = begun(self._space, self.count, to_dtypes(self._space, obs))
        return (state, stacks), stacks

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        inner, stacks = state
        outcome = self.env.step(inner, action, key)
        stacks = pushed(self._space, self.count, stacks, to_dtypes(self._space, outcome.obs))
        return outcome._replace(state=(outcome.state, stacks), obs=stacks)

    def render(self, state: Any) -> np.ndarray | None:
        return self.env.render(state[0])


def wrapped_in_jax(env: JaxEnv, action_repeat: int, frame_stack: int) -> JaxEnv:
    """The environment in a `JaxActionRepeat` inside a `JaxFrameStack`; a wrapper with the number 1 is left out."""
    if action_repeat > 1:
        env = JaxActionRepeat(env, action_repeat)
    return env if frame_stack == 1 else JaxFrameStack(env, frame_stack)


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def limited(make: Callable[..., JaxEnv], limit: int | None) -> Callable[..., JaxEnv]:
    """A function that makes the environment with a `TimeLimit`, of `limit` steps by default; None for no limit."""

    def made(*, max_episode_steps: int | None = limit, **settings: Any) -> JaxEnv:
        env = make(**settings)
        return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)

    return made
