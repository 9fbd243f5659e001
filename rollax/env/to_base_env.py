"""`to_base_env`: a `BaseEnv` without a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollax.core.importing import named_by_caller
from rollax.env.adapters import is_recognized
from rollax.env.base_env import BaseEnv
from rollax.env.making import EnvSettings, from_instance, make_base_env
from rollax.env.registry import EnvContext, env_creator
from rollax.errors import ConfigError


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
    action_repeat: int = 1,
    frame_stack: int = 1,
) -> BaseEnv:
    """Converts an environment, with copies of it if it is a single environment, to a `BaseEnv`.

    Args:
        env: as for a trainer: an id, a registered name, `module:Class`, a class, or a creator function, from which all
            `num_envs` are made. Or an instance of any kind that `rollax docs environments` lists, which is the first
            sub-environment. With `remote_envs`, an instance is moved to the process of the first sub-environment;
            with None, `make_env` makes all sub-environments.
        make_env: makes the other environments if `env` is an instance; a function of the vector index.
        num_envs: the number of sub-environments; a vector environment has its own number.
        remote_envs: each sub-environment runs in a Ray actor, and they are stepped in parallel.
        remote_env_batch_wait_ms: how long a poll waits for more remote sub-environments once one is ready: with 0, it
            takes only the ready sub-environments; with a large number, all of them step in lockstep.
        remote_env_timeout_s: limit of a remote step or reset; a process that takes longer is treated as one that died.
        restart_failed_sub_environments: a single or multi-agent environment that raises is recreated, and its episode
            is dropped. A remote sub-environment whose process dies is recreated in any case.
        observation_space, action_space: for single environments that have none before their first reset.
        action_repeat: steps for which each action is taken, or until the episode ends.
        frame_stack: number of latest observations in an observation; see `rollax.env.stacking`.
    Raises:
        EnvError, SpaceError: no environment, a creator that raised, or spaces that are missing, unsupported or unequal.
        ConfigError: an unknown id, or `make_env` together with a creator.
    """
    settings = EnvSettings(
        remote_envs=remote_envs,
        remote_env_batch_wait_ms=remote_env_batch_wait_ms,
        remote_env_timeout_s=remote_env_timeout_s,
        restart_failed_sub_environments=restart_failed_sub_environments,
        observation_space=observation_space,
        action_space=action_space,
        action_repeat=action_repeat,
        frame_stack=frame_stack,
    )
    # An instance may be callable too.
    if not (isinstance(env, str | type) or (callable(env) and not is_recognized(env))):
        return from_instance(env, make_env, num_envs, settings)
    if make_env is not None:
        raise ConfigError(
            "The environments have two creators.", "to_base_env(env, make_env)", f"env={env!r}, make_env={make_env!r}"
        ).expected(
            "make_env only beside an environment that exists, or None", "leave make_env out: env makes all environments"
        )
    return make_base_env(env_creator(named_by_caller(env)), EnvContext(), num_envs, settings)
