"""`to_base_env`: an environment of any kind becomes a `BaseEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollax.env.adapters import adapted, adapter_of
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies, Spaces, no_more


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
    """The environment, with copies of it if it is a single one, as a `BaseEnv`.

    Args:
        env: an environment of any kind in the table of `docs/environments.md`; it is the first of the `num_envs`. With
            `remote_envs` it moves to its process, and None lets `make_env` make all of them.
        make_env: makes the others, by vector index.
        num_envs: the number of sub-environments; a vector environment brings its own number.
        remote_envs: each sub-environment runs in a Ray actor, and they are stepped in parallel.
        remote_env_batch_wait_ms: how long a poll waits for more remote sub-environments once one is ready: 0 takes
            what is ready, a large number steps all in lockstep.
        remote_env_timeout_s: a remote step or reset that takes longer counts as hung, like a process that died.
        restart_failed_sub_environments: `make_env` recreates a single or multi-agent environment that raises, and its
            episode is dropped. A remote one whose process dies is recreated in any case.
        observation_space, action_space: of single environments that have none before their first reset.
    Raises:
        EnvError: an object that is no environment.
    """
    declared = Spaces(observation_space, action_space)
    if remote_envs:
        # Imported here: Ray is loaded only for remote sub-environments.
        from rollax.env.remote.remote_base_env import RemoteBaseEnv

        return RemoteBaseEnv(
            make_env or no_more,
            num_envs,
            existing=env,
            batch_wait_ms=remote_env_batch_wait_ms,
            timeout_s=remote_env_timeout_s,
            restart_failed=restart_failed_sub_environments,
            declared=declared,
        )
    first = adapted(env)
    make_adapted = None if make_env is None else lambda index: adapted(make_env(index), f"sub-environment {index}")
    return adapter_of(first)(EnvCopies(first, make_adapted, num_envs, declared, restart_failed_sub_environments))
