"""The environment of one worker, and the spaces that its policies need."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from rollax.config import TrainerConfig
from rollax.env.base_env import BaseEnv
from rollax.env.making import make_base_env
from rollax.env.registry import EnvContext
from rollax.policy.policy import PolicySpec


@dataclass(frozen=True, slots=True)
class EnvSpaces:
    """The spaces and agents of an environment.

    Args:
        observation_space, action_space: of every agent; None where agents differ.
        observation_spaces, action_spaces: by agent, where known.
        possible_agents: where known.
    """

    observation_space: Space | None = None
    action_space: Space | None = None
    observation_spaces: Mapping[Hashable, Space] | None = None
    action_spaces: Mapping[Hashable, Space] | None = None
    possible_agents: Sequence[Hashable] = ()

    @classmethod
    def of(cls, env: BaseEnv) -> EnvSpaces:
        """The spaces and agents of this environment."""
        names = ("observation_space", "action_space", "observation_spaces", "action_spaces")
        return cls(*(getattr(env, name, None) for name in names), possible_agents=env.possible_agents or ())


def worker_env(creator: Callable[[EnvContext], Any], context: EnvContext, config: TrainerConfig) -> BaseEnv:
    """All sub-environments of a worker."""
    return make_base_env(
        creator,
        context,
        config.num_envs_per_worker,
        remote_envs=config.remote_worker_envs,
        remote_env_batch_wait_ms=config.remote_env_batch_wait_ms,
        remote_env_timeout_s=config.remote_env_timeout_s,
        restart_failed_sub_environments=config.restart_failed_sub_environments,
        observation_space=config.observation_space,
        action_space=config.action_space,
    )


def env_spaces(
    env: BaseEnv | None,
    creator: Callable[[EnvContext], Any],
    context: EnvContext,
    config: TrainerConfig,
    specs: Mapping[str, PolicySpec],
) -> EnvSpaces:
    """The spaces of the environment; without one those of the config, or of an environment created for this."""
    if env is not None:
        return EnvSpaces.of(env)
    given = [(config.observation_space, config.action_space)]
    if None in given[0]:
        given = [(spec.observation_space, spec.action_space) for spec in specs.values()]
    # A critic that sees all agents needs their ids.
    if None not in [space for pair in given for space in pair] and not getattr(config, "centralized_critic", False):
        return EnvSpaces(config.observation_space, config.action_space)
    declared = {"observation_space": config.observation_space, "action_space": config.action_space}
    env = make_base_env(creator, context, 1, **declared)
    try:
        return EnvSpaces.of(env)
    finally:
        env.stop()
