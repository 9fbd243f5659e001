"""Environments of the old Gym interface: `reset() -> obs` and `step() -> (obs, reward, done, info)`."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

from rollax.env import checks
from rollax.env.dict_rows import ALL
from rollax.env.multi_agent_env import MultiAgentEnv
from rollax.env.vector_env import VectorEnv


def is_legacy(env: Any) -> bool:
    """True where `reset` takes no seed, as none did in the old interface and all do in the new one."""
    reset = getattr(env, "vector_reset", None) or getattr(env, "reset", None)
    if reset is None or isinstance(env, gym.Env | gym.vector.VectorEnv):
        return False
    parameters = inspect.signature(reset).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return not takes_any and "seed" not in parameters and "seeds" not in parameters


def adapt(env: Any) -> gym.Env | VectorEnv | MultiAgentEnv:
    """The same environment behind the interface of today; said once per class."""
    name = type(env).__name__
    checks.say_once(
        "legacy",
        name,
        f"{name} has the old Gym interface (reset() -> obs, step() -> 4 values); it is adapted: done counts as "
        "terminated unless info['TimeLimit.truncated'] is set, and seeds are passed to env.seed() where there is one.",
    )
    if hasattr(env, "vector_step"):
        return LegacyVectorEnv(env)
    if isinstance(env, MultiAgentEnv) or getattr(env, "is_multi_agent", False):
        return LegacyMultiAgentEnv(env)
    return LegacyEnv(env)


class LegacyEnv(gym.Env):
    """An old single-agent env."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.metadata = getattr(env, "metadata", None) or {}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        _seed(self.env, seed)
        return _obs_and_info(self.env.reset())

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        result = self.env.step(action)
        if len(result) == 5:
            return result
        obs, reward, done, info = result
        truncated = bool(done) and _was_cut(info)
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()

    @property
    def unwrapped(self) -> Any:
        return self.env


class LegacyVectorEnv(VectorEnv):
    """An old vector env: `vector_reset() -> obs`, `reset_at(i) -> obs`, `vector_step` of four values."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.observation_space, env.action_space, env.num_envs)
        self.env = env

    def vector_reset(self, seeds: Any = None, options: Any = None) -> tuple[Any, list[dict]]:
        if seeds is not None:
            _seed(self.env, seeds[0])
        return list(self.env.vector_reset()), [{}] * self.num_envs

    def reset_at(self, index: int, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        return _obs_and_info(self.env.reset_at(index))

    def vector_step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        result = self.env.vector_step(actions)
        if len(result) == 5:
            return result
        obs, rewards, dones, infos = result
        truncateds = [bool(done) and _was_cut(info) for done, info in zip(dones, infos, strict=True)]
        terminateds = [bool(done) and not cut for done, cut in zip(dones, truncateds, strict=True)]
        return list(obs), rewards, terminateds, truncateds, infos

    def get_sub_environments(self) -> list[Any]:
        get = getattr(self.env, "get_sub_environments", None) or getattr(self.env, "get_unwrapped", list)
        return get()

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


class LegacyMultiAgentEnv(MultiAgentEnv):
    """An old multi-agent env: `reset() -> obs`, `step(actions) -> (obs, rewards, dones, infos)` by agent id."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = getattr(env, "observation_space", None)
        self.action_space = getattr(env, "action_space", None)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        _seed(self.env, seed)
        result = self.env.reset()
        return result if isinstance(result, tuple) else (result, {})

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        result = self.env.step(actions)
        if len(result) == 5:
            return result
        obs, rewards, dones, infos = result
        cut = any(_was_cut(info) for info in infos.values())
        truncateds = {agent: bool(done) and (cut or _was_cut(infos.get(agent, {}))) for agent, done in dones.items()}
        terminateds = {agent: bool(done) and not truncateds[agent] for agent, done in dones.items()}
        truncateds.setdefault(ALL, False)
        return obs, rewards, terminateds, truncateds, infos

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


def _obs_and_info(result: Any) -> tuple[Any, dict]:
    new_style = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result if new_style else (result, {})


def _was_cut(info: Any) -> bool:
    return isinstance(info, dict) and bool(info.get("TimeLimit.truncated", False))


def _seed(env: Any, seed: int | None) -> None:
    if seed is not None and hasattr(env, "seed"):
        env.seed(seed)
