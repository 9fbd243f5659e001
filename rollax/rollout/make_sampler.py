"""Makes the environment, the sampler and the background thread of a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollax.config import TrainerConfig
from rollax.core.introspection import overrides
from rollax.env.base_env import BaseEnv
from rollax.env.making import EnvSettings, make_base_env
from rollax.env.registry import EnvContext
from rollax.errors import ConfigError
from rollax.policy.policy_spec import PolicySpec
from rollax.rollout.block_sampler import BlockSampler, why_not_in_blocks
from rollax.rollout.callbacks import Callbacks, check_returned
from rollax.rollout.episodes import EpisodeTable
from rollax.rollout.postprocess import BY_TRAJECTORY, overrides_trajectory
from rollax.rollout.sampler import Sampler, SamplingOnRequest
from rollax.rollout.seeds import first_env, first_ids

if TYPE_CHECKING:
    from rollax.rollout.worker import RolloutWorker

log = logging.getLogger("rollax.sampling")

MOST_WAITING_STEPS = 10_000
"""Maximum number of environment steps that a background thread keeps for an off-policy learner."""


def make_env(creator: Callable[[EnvContext], Any], context: EnvContext, config: TrainerConfig) -> BaseEnv:
    """The environment of a worker, with all of its sub-environments."""
    return make_base_env(creator, context, config.num_envs_per_worker, _settings(config))


def _settings(config: TrainerConfig) -> EnvSettings:
    """The settings of the sub-environments of a worker."""
    stacks = config.frame_stack > 1
    return EnvSettings(
        remote_envs=config.remote_worker_envs,
        remote_env_batch_wait_ms=config.remote_env_batch_wait_ms,
        remote_env_timeout_s=config.remote_env_timeout_s,
        restart_failed_sub_environments=config.restart_failed_sub_environments,
        # The config's observation space is for policies, which observe stacks of frames.
        observation_space=None if stacks else config.observation_space,
        action_space=config.action_space,
        action_repeat=config.action_repeat,
        frame_stack=config.frame_stack,
        wrappers=config.env_wrappers,
        ray_address=config.ray_address,
    )


@contextmanager
def env_with_spaces(
    creator: Callable[[EnvContext], Any], context: EnvContext, config: TrainerConfig, specs: Mapping[str, PolicySpec]
) -> Iterator[BaseEnv | None]:
    """Context of an environment from which a worker without an environment reads spaces and agent ids.

    It is None if the config and the policies' specs define all spaces, and no centralized critic needs the agent ids.
    """
    declared: dict[str, Any] = {"observation_space": config.observation_space, "action_space": config.action_space}
    known = all(
        getattr(spec, kind) is not None for kind, space in declared.items() if space is None for spec in specs.values()
    )
    # A centralized critic needs the ids of all agents.
    sees_all = getattr(config, "centralized_critic", False)
    if known and not (sees_all or any(spec.config.get("centralized_critic") for spec in specs.values())):
        yield None
        return
    env = make_base_env(
        creator, context, 1, replace(_settings(config), remote_envs=False, restart_failed_sub_environments=False)
    )
    try:
        yield env
    finally:
        env.stop()


def make_sampler(worker: RolloutWorker, env: BaseEnv, *, record: bool) -> Sampler:
    """The sampler that a worker's config requires; `record`: whether trajectories are kept."""
    by_trajectory = any(overrides_trajectory(policy) for policy in worker.policies.values())
    if by_trajectory or worker.policies.joint_rows is not None:
        for runner in worker.runners.values():
            runner.store(BY_TRAJECTORY)
    sampler_class = _sampler_class(worker, env, record=record)
    sampler = sampler_class(
        env,
        worker.runners,
        _episode_table(worker, env, keeps_past=by_trajectory),
        policy_of=worker.policy_of,
        fragment_length=_fragment_length(worker.config, env),
        complete_episodes=worker.config.batch_mode == "complete_episodes",
        record=record,
        explore=worker.config.explore,
    )
    if (key := worker.config.recording_key) is not None:
        from rollax.rollout.row_sampler import RowSampler  # loaded only where it is used

        if not issubclass(sampler_class, RowSampler):
            raise ConfigError(
                "The sampler does not write experience.", f"config keys '{key}' and 'sampler'", sampler_class.__name__
            ).expected("rollax's own sampler, or a subclass of it", "leave one of the two keys out")
        sampler.recorder = worker.config.make_recorder(sampler, worker.worker_index)
    return sampler


def make_sampling(worker: RolloutWorker, env: BaseEnv | None, *, record: bool) -> SamplingOnRequest:
    """How a worker samples: in a background thread or on request.

    Raises:
        ConfigError: the config requests a thread, and a policy cannot act while it learns.
    """
    on_request, wanted = SamplingOnRequest(worker.rollout, repr(worker), env), worker.config.sample_async
    if env is None or not record:
        return on_request
    others = [policy.label for policy in worker.policies.values() if not policy.acts_while_learning]
    _warn_of_policy_lag(worker, env)
    if not (env.samples_in_background if wanted is None else wanted) or (wanted is None and others):
        return on_request
    if others:
        raise ConfigError(
            "The policy cannot act while it learns.", "config key 'sample_async'", f"true, with {', '.join(others)}"
        ).expected(
            "policies with acts_while_learning=True",
            "set acts_while_learning if threads may act during learn_on_batch, or leave sample_async out",
        )
    from rollax.rollout.background_sampling import BackgroundSampling  # loaded only where it is used

    most = MOST_WAITING_STEPS if worker.policies.accept_off_policy else worker.config.train_batch_size
    in_pool = worker.worker_index > 0
    return BackgroundSampling(worker.rollout, repr(worker), env, most, worker.is_too_old, in_pool=in_pool)


def _warn_of_policy_lag(worker: RolloutWorker, env: BaseEnv) -> None:
    """Warns if `max_policy_lag` has no effect. It is no error, because the key may apply to another environment."""
    most, on_policy = worker.config.max_policy_lag, not worker.policies.accept_off_policy
    applies = on_policy and (worker.config.sample_async or env.samples_in_background)
    if most == type(worker.config).model_fields["max_policy_lag"].default or applies or worker.worker_index > 1:
        return
    log.warning(
        "max_policy_lag=%s has no effect: %s. It bounds the age of experience from a background thread (sample_async), "
        "or from clients of a policy server.",
        most,
        "each fragment is sampled on request" if on_policy else "the policies learn from all actions",
    )


def _sampler_class(worker: RolloutWorker, env: BaseEnv, *, record: bool) -> type[Sampler]:
    given = worker.config.sampler
    if given is not None:
        if isinstance(given, type) and issubclass(given, Sampler):
            return given
        raise ConfigError.is_not("The sampler", "a subclass of rollax.Sampler", "config key 'sampler'", given).fix(
            "derive it from rollax.Sampler, or leave the key out"
        )
    if worker.env.in_jax:
        from rollax.env.jax.torch_vector_env import TorchBaseEnv  # these modules import JAX
        from rollax.rollout.compiled_sampler import CompiledSampler, why_not_compiled
        from rollax.rollout.simulator_sampler import SimulatorSampler

        if not (reason := why_not_compiled(worker)):
            return SimulatorSampler if isinstance(worker.env, TorchBaseEnv) else CompiledSampler
        if record:
            log.warning("%r is sampled step by step, not in one compiled call, because of %s.", env, reason)
    if not why_not_in_blocks(worker, env):
        return BlockSampler
    from rollax.rollout.row_sampler import RowSampler  # loaded only where it is used

    return RowSampler


def _episode_table(worker: RolloutWorker, env: BaseEnv, *, keeps_past: bool) -> EpisodeTable:
    def listener(method: str) -> Callable[[Any], Any] | None:
        callbacks = worker.callbacks
        if not overrides(type(callbacks), Callbacks, method):
            return None
        call = getattr(callbacks, method)

        def listen(episode: Any) -> None:
            returned = call(worker=worker, base_env=env, episode=episode)
            if returned is not None:
                check_returned(callbacks, method, returned, episode)

        return listen

    first_id, first_episode = first_ids(worker.worker_index, worker.restarts)
    return EpisodeTable(
        env.num_envs,
        seed=worker.config.seed,
        first_env=first_env(worker.worker_index, env.num_envs),
        first_id=first_id,
        first_episode=first_episode,
        on_start=listener("on_episode_start"),
        on_step=listener("on_episode_step"),
        on_end=listener("on_episode_end"),
        only_policy=next(iter(worker.policies)) if len(worker.policies) == 1 else None,
        keeps_past=keeps_past,
    )


def _fragment_length(config: TrainerConfig, env: BaseEnv) -> int:
    if config.num_envs_per_worker != env.num_envs:  # a vector environment has its own number of sub-environments
        config = config.changed(num_envs_per_worker=env.num_envs)
    if config.rollout_fragment_length == "auto" and config.count_steps_by == "agent_steps":
        return -(-config.fragment_length // max(len(env.possible_agents or ()), 1))
    return config.fragment_length
