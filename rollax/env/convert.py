"""`to_base_env`: whatever a user gives becomes a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollax.env import checks
from rollax.env.adapting import adapted
from rollax.env.base_env import BaseEnv
from rollax.env.copies import Spaces, make_copies
from rollax.env.external.external_base_env import ExternalBaseEnv
from rollax.env.external.external_env import ExternalEnv, ExternalMultiAgentEnv
from rollax.env.multi_agent.multi_agent_env import MultiAgentBaseEnv, MultiAgentEnv
from rollax.env.restarting import Restarts
from rollax.env.row_checks import with_checked_rows
from rollax.env.vector.native_vector_env import NativeVectorEnv
from rollax.env.vector.vector_base_env import VectorBaseEnv
from rollax.env.vector.vector_env import SteppedInTurn, VectorEnv
from rollax.errors import EnvError
from rollax.spaces import check_space


def to_base_env(
    env: Any,
    make_env: Callable[[int], Any] | None = None,
    num_envs: int = 1,
    remote_envs: bool = False,
    remote_env_batch_wait_ms: float = 0.0,
    *,
    remote_env_timeout_s: float | None = None,
    restart_failed_sub_environments: bool = False,
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
) -> BaseEnv:
    """The environment, and copies of it where it is a single one, as a `BaseEnv`.

    Args:
        env: an environment of any kind of the conversion table; it is one of the `num_envs`. With `remote_envs` it
            travels to its process, and may be None: then `make_env` makes all.
        make_env: makes the others, by vector index.
        num_envs: how many sub-environments there are to be; a native or custom vector env brings its own number.
        remote_envs: each sub-environment runs in a Ray actor; they are stepped in parallel.
        remote_env_batch_wait_ms: how long a poll waits for other remote sub-environments once one is ready: 0 takes
            what is ready, a large number steps all in lockstep.
        remote_env_timeout_s: a remote step or reset that takes longer has hung, and is treated as a process that died.
        restart_failed_sub_environments: a single or multi-agent env that raises is made anew by `make_env`, and its
            episode dropped; remote ones whose process dies are in any case.
        observation_space, action_space: of single environments that do not know their own before their first reset.
    Raises:
        EnvError: an object that is no environment.
    """
    declared = Spaces(observation_space, action_space)
    if remote_envs:
        return _remote(
            env,
            make_env,
            num_envs,
            batch_wait_ms=remote_env_batch_wait_ms,
            timeout_s=remote_env_timeout_s,
            restart_failed=restart_failed_sub_environments,
            declared=declared,
        )
    if isinstance(env, BaseEnv):
        for kind in ("observation_space", "action_space"):
            if getattr(env, kind) is not None:
                check_space(getattr(env, kind), f"{type(env).__name__}.{kind}")
        return with_checked_rows(env)
    env, make_env = adapted(env), None if make_env is None else _adapting(make_env)
    restarts = Restarts(make_env or _no_more, declared) if restart_failed_sub_environments else None
    if restarts is not None and isinstance(env, gym.vector.VectorEnv | VectorEnv):
        checks.say_once(
            "restarts",
            type(env).__name__,
            f"{type(env).__name__} brings its own sub-environments: one that fails cannot be made anew.",
        )
    if isinstance(env, gym.vector.VectorEnv):
        return NativeVectorEnv(env)
    if isinstance(env, VectorEnv):
        return VectorBaseEnv(env)
    if isinstance(env, ExternalEnv | ExternalMultiAgentEnv):
        return ExternalBaseEnv(env)
    if isinstance(env, MultiAgentEnv):
        return MultiAgentBaseEnv(make_copies([env], make_env, num_envs, may_lack_spaces=True), restarts)
    if hasattr(env, "reset") and hasattr(env, "step"):
        return VectorBaseEnv(SteppedInTurn(make_env, [env], num_envs, restarts=restarts, declared=declared))
    raise EnvError(
        "No environment.",
        where="to_base_env",
        got=env,
        expected="a BaseEnv, VectorEnv, gymnasium.vector.VectorEnv, MultiAgentEnv, ExternalEnv, or an env with reset "
        "and step",
        fix="return an instance from the creator, not a class or None",
    )


def _adapting(make_env: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda index: adapted(make_env(index))


def _remote(env: Any, make_env: Callable[[int], Any] | None, num_envs: int, **settings: Any) -> BaseEnv:
    # Only now: without remote sub-environments nothing of Ray is loaded.
    from rollax.env.remote.remote_base_env import RemoteBaseEnv

    return RemoteBaseEnv(make_env or _no_more, num_envs, existing=env, **settings)


def _no_more(index: int) -> Any:
    raise EnvError(
        "Too few environments.",
        where=f"sub-environment {index}",
        got="no make_env",
        expected="a function of the vector index that makes it",
        fix="pass make_env to to_base_env",
    )
