"""The environment of one worker, and what its policies must know of one."""

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
    """What policies must know of an environment.

    Args:
        observation_space, action_space: of every agent; None where agents differ.
        observation_spaces, action_spaces: by agent, where they are known.
        possible_agents: where they are known.
    """

    observation_space: Space | None = None
    action_space: Space | None = None
    observation_spaces: Mapping[Hashable, Space] | None = None
    action_spaces: Mapping[Hashable, Space] | None = None
    possible_agents: Sequence[Hashable] = ()

    @classmethod
    def of(cls, env: BaseEnv) -> EnvSpaces:
        """Those of an environment that has been made."""
        names = ("observation_space", "action_space", "observation_spaces", "action_spaces")
        return cls(*(getattr(env, name, None) for name in names), possible_agents=env.possible_agents or ())


class EnvMaker:
    """Makes the environment of one worker.

    Args:
        env_creator: what it is made from: a function of one `EnvContext`, a class, an id.
        config: the worker's.
        worker_index: 0 in the driver.
        num_workers: how many remote workers there are.
    """

    def __init__(self, env_creator: Any, config: TrainerConfig, worker_index: int, num_workers: int) -> None:
        self._creator = creator_of(env_creator)
        self._config = config
        self._context = EnvContext(config.env_config, worker_index=worker_index, num_workers=num_workers)

    def env(self) -> BaseEnv:
        """All of its sub-environments, as the config wants them."""
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
        """Those of the config where it gives all that is needed, or else those of an environment made to be asked."""
        config = self._config
        given = [(config.observation_space, config.action_space)]
        if None in given[0]:
            given = [(spec.observation_space, spec.action_space) for spec in specs.values()]
        # A critic that sees all agents must know who they are.
        if None not in [space for pair in given for space in pair] and not getattr(config, "centralized_critic", False):
            return EnvSpaces(config.observation_space, config.action_space)
        declared = {"observation_space": config.observation_space, "action_space": config.action_space}
        env = make_base_env(self._creator, self._context, 1, **declared)
        try:
            return EnvSpaces.of(env)
        finally:
            env.stop()
