"""The environment of one worker, and the spaces that its policies need."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from rollax.config import TrainerConfig
from rollax.env.base_env import BaseEnv
from rollax.env.context import EnvContext
from rollax.env.making import make_base_env
from rollax.env.registry import env_creator as creator_of
from rollax.policy.spec import PolicySpec


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


class EnvMaker:
    """Creates the environment of one worker.

    Args:
        env_creator: a function of one `EnvContext`, a class, or an id.
        config: the worker's.
        worker_index: 0 in the driver.
        num_workers: how many remote workers there are.
    """

    def __init__(self, env_creator: Any, config: TrainerConfig, worker_index: int, num_workers: int) -> None:
        self._creator = creator_of(env_creator)
        self._config = config
        self._context = EnvContext(config.env_config, worker_index=worker_index, num_workers=num_workers)

    def env(self) -> BaseEnv:
        """All sub-environments of the worker."""
        config = self._config
        return make_base_env(
            self._creator,
            self._context,
            config.num_envs_per_worker,
            remote_envs=config.remote_worker_envs,
            remote_env_batch_wait_ms=config.remote_env_batch_wait_ms,
            remote_env_timeout_s=config.remote_env_timeout_s,
            restart_failed_sub_environments=config.restart_failed_sub_environments,
            observation_space=config.observation_space,
            action_space=config.action_space,
        )

    def spaces(self, specs: Mapping[str, PolicySpec]) -> EnvSpaces:
        """The spaces of the config where they suffice, else those of an environment created for this and closed."""
        config = self._config
        given = [(config.observation_space, config.action_space)]
        if None in given[0]:
            given = [(spec.observation_space, spec.action_space) for spec in specs.values()]
        # A critic that sees all agents needs their ids.
        if None not in [space for pair in given for space in pair] and not getattr(config, "centralized_critic", False):
            return EnvSpaces(config.observation_space, config.action_space)
        declared = {"observation_space": config.observation_space, "action_space": config.action_space}
        env = make_base_env(self._creator, self._context, 1, **declared)
        try:
            return EnvSpaces.of(env)
        finally:
            env.stop()
