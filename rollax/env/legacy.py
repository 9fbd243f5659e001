"""Environments of the old Gym interface: `reset() -> obs` and `step() -> (obs, reward, done, info)`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax.env import checks
from rollax.env.adapters import parameters_of, requires_arguments
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv, are_dicts
from rollax.env.rows import ALL
from rollax.env.vector import VectorEnv
from rollax.errors import EnvError

_CUT = "TimeLimit.truncated"


def adapt(env: Any) -> gym.Env | VectorEnv | MultiAgentEnv:
    """Adapts the environment to the current interface, and logs this once per class.

    Raises EnvError if `reset` requires arguments.
    """
    name = type(env).__name__
    _check_reset(env, name)
    if isinstance(env, gym.Env) and "seed" not in parameters_of(env.reset):  # step may well return five values
        checks.warn_once(
            "seed",
            name,
            f"{name}.reset accepts no seed: declare it as `def reset(self, *, seed=None, options=None)`, and call "
            "super().reset(seed=seed) in it. Until then seeds are passed to env.seed(), if it exists, and reset may "
            "return obs alone, and step 4 values, as in the old Gym interface.",
        )
    else:
        checks.warn_once(
            "legacy",
            name,
            f"{name} has the old Gym interface (reset() -> obs, step() -> 4 values); it is adapted: done counts as "
            "terminated unless info['TimeLimit.truncated'] is set, and seeds are passed to env.seed(), if it exists.",
        )
    if hasattr(env, "vector_step"):
        return LegacyVectorEnv(env)
    if isinstance(env, MultiAgentEnv) or getattr(env, "is_multi_agent", False):
        return LegacyMultiAgentEnv(env)
    return LegacyEnv(env)


def _check_reset(env: Any, name: str) -> None:
    reset = getattr(env, "vector_reset", None) or env.reset
    if requires_arguments(reset):
        raise EnvError("reset requires arguments.", name, f"reset({', '.join(parameters_of(reset))})").expected(
            "reset(*, seed=None, options=None)",
            "implement gymnasium.Env; if the environment is a function of a key, in JAX, subclass rollax.JaxEnv",
        )


class _Legacy:
    """The common part of single-agent and multi-agent environments."""

    def __init__(self, env: Any) -> None:
        self.env = self.as_written = env
        self.observation_space: Any = getattr(env, "observation_space", None)  # checked by `EnvCopies`
        self.action_space: Any = getattr(env, "action_space", None)
        self.possible_agents = getattr(env, "possible_agents", None)
        self.metadata = getattr(env, "metadata", None) or {}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if "seed" in parameters_of(self.env.reset):
            return _obs_and_info(self.env.reset(seed=seed), self.observation_space)
        _seed(self.env, seed)
        return _obs_and_info(self.env.reset(), self.observation_space)

    def render(self) -> Any:
        render = getattr(self.env, "render", None)
        if render is None:
            return None
        return render(mode="rgb_array") if "mode" in parameters_of(render) else render()

    def close(self) -> None:
        _close(self.env)


class LegacyEnv(_Legacy, gym.Env):
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        result = self.env.step(action)
        if _is_new(result, type(self.env).__name__):
            return result
        obs, reward, done, info = result
        return obs, reward, *_ends(done, info), info


class LegacyVectorEnv(VectorEnv):
    """An old vector env: `vector_reset() -> obs`, `reset_at(i) -> obs`, `vector_step` of four values."""

    seeds_every_episode = False

    def __init__(self, env: Any) -> None:
        super().__init__(getattr(env, "observation_space", None), getattr(env, "action_space", None), env.num_envs)  # type: ignore[arg-type]
        self.env = self.as_written = env

    def vector_reset(self, seeds: Any = None, options: Any = None) -> tuple[Any, list[dict]]:
        if seeds is not None:
            _seed(self.env, seeds[0])
        result = self.env.vector_reset()
        if isinstance(result, tuple) and len(result) == 2 and _are_infos(result[1], self.num_envs):
            return result
        return result, [{} for _ in range(self.num_envs)]

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return _obs_and_info(self.env.reset_at(index), self.observation_space)

    def vector_step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        result = self.env.vector_step(actions)
        if _is_new(result, type(self.env).__name__):
            return result
        obs, rewards, dones, infos = result
        if not (_are_infos(infos, self.num_envs) and hasattr(dones, "__len__") and len(dones) == self.num_envs):
            return obs, rewards, dones, [False] * self.num_envs, infos  # refused later, as in any environment
        terminateds, truncateds = zip(*map(_ends, dones, infos), strict=True)
        return obs, rewards, terminateds, truncateds, infos

    def get_sub_environments(self) -> list[Any]:
        return getattr(self.env, "get_sub_environments", getattr(self.env, "get_unwrapped", list))()

    def try_render_at(self, index: int) -> Any:
        render = getattr(self.env, "try_render_at", None)
        return None if render is None else render(index)

    def close(self) -> None:
        _close(self.env)


class LegacyMultiAgentEnv(_Legacy, MultiAgentEnv):
    """An old multi-agent env: `reset() -> obs`, `step(actions) -> (obs, rewards, dones, infos)` by agent id."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_spaces = getattr(env, "observation_spaces", None)
        self.action_spaces = getattr(env, "action_spaces", None)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        result = self.env.step(actions)
        if _is_new(result, type(self.env).__name__):
            return result
        obs, rewards, dones, infos = result
        if not are_dicts(tuple(result), 4):
            return obs, rewards, dones, {ALL: False}, infos  # refused later, as in any environment
        # Often only one agent's info reports the time limit; an agent whose own info says False was not truncated.
        any_cut = {_CUT: any(_was_cut(info) for info in infos.values())}
        ends = {
            agent: _ends(done, any_cut if _was_cut(infos.get(agent)) is None else infos[agent])
            for agent, done in dones.items()
        }
        terminateds, truncateds = ({agent: end[place] for agent, end in ends.items()} for place in (0, 1))
        return obs, rewards, terminateds, {ALL: False, **truncateds}, infos


def _is_new(result: Any, name: str) -> bool:
    """True for a step of five values, False for four."""
    if isinstance(result, tuple | list) and len(result) in (4, 5):
        return len(result) == 5
    raise EnvError("step() returned neither four nor five values.", name, checks.outline(result)).expected(
        "(obs, reward, done, info), or (obs, reward, terminated, truncated, info)",
        "return the five values of gymnasium.Env.step",
    )


def _obs_and_info(result: Any, space: Any) -> tuple[Any, dict]:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        return result, {}
    last = space.spaces[-1] if isinstance(space, spaces.Tuple) and len(space.spaces) == 2 else None
    is_obs = isinstance(last, spaces.Dict) and result[1].keys() == last.spaces.keys()
    return (result, {}) if is_obs else result


def _are_infos(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == count and all(isinstance(info, dict) for info in value)


def _ends(done: Any, info: Any) -> tuple[Any, bool]:
    """The flags terminated and truncated; a value that is no flag is passed on as `terminated`, and refused later."""
    # A flag is a bool, or an array of shape () as in JAX.
    is_flag = type(done) is bool or (getattr(done, "dtype", None) == np.bool_ and done.shape == ())
    truncated = is_flag and bool(done) and bool(_was_cut(info))
    return False if truncated else done, truncated


def _was_cut(info: Any) -> Any:
    """Whether an info reports that a time limit ended the episode; None if it does not report it."""
    return info.get(_CUT) if isinstance(info, dict) else None


def _seed(env: Any, seed: int | None) -> None:
    # `seed` may also be an attribute that is a number.
    if seed is not None and callable(getattr(env, "seed", None)):
        env.seed(seed)


def _close(env: Any) -> None:
    getattr(env, "close", lambda: None)()
