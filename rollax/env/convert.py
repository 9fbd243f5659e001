"""`to_base_env`: whatever a user gives becomes a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollax.env import legacy
from rollax.env.base_env import BaseEnv
from rollax.env.copies import make_copies
from rollax.env.multi_agent_env import MultiAgentBaseEnv, MultiAgentEnv
from rollax.env.native_vector_env import NativeVectorEnv
from rollax.env.vector_base_env import VectorBaseEnv
from rollax.env.vector_env import VectorEnv
from rollax.errors import EnvError
from rollax.spaces import check_space


def to_base_env(env: Any, make_env: Callable[[int], Any] | None = None, num_envs: int = 1) -> BaseEnv:
    """The environment, and copies of it where it is a single one, as a `BaseEnv`.

    Args:
        env: an environment of any kind of the conversion table; it is one of the `num_envs`.
        make_env: makes the others, by vector index.
        num_envs: how many sub-environments there are to be; a native or custom vector env brings its own number.
    Raises:
        EnvError: an object that is no environment.
    """
    if isinstance(env, BaseEnv):
        for kind in ("observation_space", "action_space"):
            if getattr(env, kind) is not None:
                check_space(getattr(env, kind), f"{type(env).__name__}.{kind}")
        return env
    if legacy.is_legacy(env):
        make_modern = None if make_env is None else lambda index: legacy.adapt(make_env(index))
        return to_base_env(legacy.adapt(env), make_modern, num_envs)
    if isinstance(env, gym.vector.VectorEnv):
        return NativeVectorEnv(env)
    if isinstance(env, VectorEnv):
        return VectorBaseEnv(env)
    if isinstance(env, MultiAgentEnv):
        return MultiAgentBaseEnv(make_copies([env], make_env, num_envs, may_lack_spaces=True))
    if hasattr(env, "reset") and hasattr(env, "step"):
        return VectorBaseEnv(VectorEnv.wrap(make_env, [env], num_envs))
    raise EnvError(
        "No environment.",
        where="to_base_env",
        got=env,
        expected="a BaseEnv, VectorEnv, gymnasium.vector.VectorEnv, MultiAgentEnv, or an env with reset and step",
        fix="return an instance from the creator, not a class or None",
    )
