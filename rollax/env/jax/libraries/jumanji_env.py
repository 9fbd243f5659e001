"""Environments of jumanji: `jax:jumanji/Snake-v1`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import Space, spaces

from rollax.core.spaces import ACTION_MASK
from rollax.env.jax.jax_env import JaxEnv, Outcome
from rollax.env.jax.libraries.library import (
    NamedEnv,
    check_name,
    library_module,
    refuse_wrappers,
    unbounded,
    without_limit,
)
from rollax.env.jax.wrappers import TimeLimit
from rollax.errors import EnvError

_WRAPPERS = frozenset({"AutoResetWrapper", "VmapWrapper", "VmapAutoResetWrapper"})
# Their rewards depend on the time limit, so the limit is a part of the task and is kept.
_REWARDED_BY_LIMIT = frozenset({"SearchAndRescue"})


class JumanjiEnv(JaxEnv):
    """An environment of jumanji with one reward.

    The observation is a Dict of its fields, without bounds, because the declared bounds are not always right. The field
    `action_mask` becomes the mask of the action space. Actions of several choices with a mask of all combinations, such
    as the rows and columns of Minesweeper, become Discrete, one action for each combination.

    Args:
        env: a `jumanji.Environment`.
    Raises:
        EnvError: a reward for each agent, or a wrapper that vectorizes or resets the environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        expected = "an environment as jumanji.make makes it"
        refuse_wrappers(env, "_env", lambda cls: cls.__name__ in _WRAPPERS, repr(self), expected)
        _, step = jax.eval_shape(env.reset, jax.random.key(0))
        if step.reward.shape != ():
            raise EnvError("The environment has a reward for each agent.", repr(self), step.reward.shape).expected(
                "one reward",
                "pass lambda context: jumanji.wrappers.MultiToSingleWrapper(jumanji.make(...)), which adds them up",
            )
        obs = _as_dict(step.observation)
        mask = obs.pop(ACTION_MASK, None) if isinstance(obs, dict) else None
        self.action_space, self._to_jumanji = _actions(env.action_spec, None if mask is None else mask.shape)
        if mask is None:
            self.observation_space = unbounded(obs)
        else:
            parts = {name: unbounded(part) for name, part in obs.items()}
            self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(mask.size)})

    def __repr__(self) -> str:
        return f"JumanjiEnv({type(self.env.unwrapped).__name__})"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, step = self.env.reset(key)
        return state, self._seen(step)

    def step(self, state: Any, action: Any, key: jax.Array) -> Outcome:
        state, step = self.env.step(state, self._to_jumanji(action))
        over, dead = step.last(), step.discount == 0
        return Outcome(state, self._seen(step), step.reward, over & dead, over & ~dead)

    def _seen(self, step: Any) -> Any:
        """The observation, with a mask that allows all choices where jumanji's allows none, as before Snake's death."""
        obs = _as_dict(step.observation)
        if isinstance(obs, dict) and ACTION_MASK in obs:
            choices = len(self.action_space.nvec) if isinstance(self.action_space, spaces.MultiDiscrete) else 1
            mask = jnp.reshape(obs[ACTION_MASK], (choices, -1)).astype(bool)
            obs[ACTION_MASK] = (mask | ~mask.any(axis=1, keepdims=True)).ravel().astype(jnp.int8)
        return obs


def from_jumanji(env: Any, *limit: int | None) -> JaxEnv:
    """An environment of jumanji, truncated after its own limit of steps, or after `limit`.

    Most environments of jumanji report the end at their time limit as a termination.
    """
    own = None
    if type(env.unwrapped).__name__ not in _REWARDED_BY_LIMIT:
        env, own = without_limit(env, "time_limit")
    steps = limit[0] if limit else own
    return JumanjiEnv(env) if steps is None else TimeLimit(JumanjiEnv(env), steps)


def creator(name: str) -> NamedEnv:
    """`jax:jumanji/Snake-v1`; settings are arguments of the class, such as `num_rows`."""
    library = library_module("jumanji")
    check_name("jumanji", name, names())

    def make(**settings: Any) -> JaxEnv:
        limit = [settings.pop("max_episode_steps")] if "max_episode_steps" in settings else []
        return from_jumanji(library.make(name, **settings), *limit)

    registration = importlib.import_module("jumanji.registration")
    return make, registration.load(registration._REGISTRY[name].entry_point)


def names() -> Iterable[str]:
    return library_module("jumanji").registered_environments()


def _actions(spec: Any, mask_shape: tuple[int, ...] | None) -> tuple[Space, Callable[[Any], Any]]:
    """The space of the actions, and the function that converts an action of this space to jumanji's form."""
    if hasattr(spec, "num_values") and spec.shape == ():
        return spaces.Discrete(int(spec.num_values)), lambda action: action
    if not np.issubdtype(spec.dtype, np.integer):
        return spaces.Box(spec.minimum, spec.maximum, spec.shape, np.float32), lambda action: action
    low, high = (np.broadcast_to(np.asarray(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
    counts = high - low + 1
    if mask_shape is not None and mask_shape == tuple(counts):
        return spaces.Discrete(int(counts.prod())), lambda action: jnp.stack(jnp.unravel_index(action, mask_shape))
    if mask_shape is not None and mask_shape[:-1] == counts.shape:  # MultiCVRP declares one choice too many
        counts = np.full(counts.shape, mask_shape[-1])
    return spaces.MultiDiscrete(counts, start=low), lambda action: action


def _as_dict(obs: Any) -> Any:
    """An observation with its named tuples and dataclasses as dicts."""
    if dataclasses.is_dataclass(obs):
        fields = {field.name: getattr(obs, field.name) for field in dataclasses.fields(obs)}
    elif hasattr(obs, "_asdict"):
        fields = obs._asdict()
    else:
        return obs
    return {name: _as_dict(part) for name, part in fields.items()}
