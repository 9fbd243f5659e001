"""The sampler of one worker, and the table of its episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollax.config import TrainerConfig
from rollax.env.base_env import BaseEnv
from rollax.evaluation.callbacks import overrides
from rollax.evaluation.episode_table import EpisodeTable
from rollax.evaluation.postprocess import BY_TRAJECTORY, overrides_trajectory
from rollax.evaluation.sampler import Sampler

if TYPE_CHECKING:
    from rollax.evaluation.rollout_worker import RolloutWorker

# The numbers of episodes and trajectories count up from (worker, restart, 0): no number is given twice.
_BITS_OF_WORKERS, _BITS_OF_RESTARTS = 48, 32


def make_sampler(
    worker: RolloutWorker, env: BaseEnv, policy_of: Callable[..., str] | None, *, record: bool, joins_rows: bool
) -> Sampler:
    """What steps the environment of a worker and acts with its policies.

    Args:
        worker: it.
        env: its environment.
        policy_of: which policy an agent has; None where there is one policy.
        record: whether trajectories are kept.
        joins_rows: whether the rows of all agents are joined once a fragment is whole.
    """
    episodes = _episode_table(worker, env)
    if any(overrides_trajectory(policy) for policy in worker.policies.values()):
        episodes.past = {}
    if episodes.past is not None or joins_rows:
        for runner in worker.runners.values():
            runner.store(BY_TRAJECTORY)
    sampler = Sampler(
        env,
        worker.runners,
        episodes,
        policy_of=policy_of,
        fragment_length=_fragment_length(worker.config, env),
        complete_episodes=worker.config.batch_mode == "complete_episodes",
        record=record,
    )
    sampler.explore = worker.config.explore
    return sampler


def _episode_table(worker: RolloutWorker, env: BaseEnv) -> EpisodeTable:
    def listener(method: str) -> Callable[[Any], Any] | None:
        if not overrides(worker.callbacks, method):
            return None
        call = getattr(worker.callbacks, method)
        return lambda episode: call(worker=worker, base_env=env, episode=episode)

    return EpisodeTable(
        env.num_envs,
        seed=worker.config.seed,
        first_env=(max(worker.worker_index, 1) - 1) * env.num_envs,
        first_id=(worker.worker_index << _BITS_OF_WORKERS) + (worker.restarts << _BITS_OF_RESTARTS),
        first_episode=worker.restarts << _BITS_OF_RESTARTS,
        on_start=listener("on_episode_start"),
        on_step=listener("on_episode_step"),
        on_end=listener("on_episode_end"),
        only_policy=next(iter(worker.policies)) if len(worker.policies) == 1 else None,
    )


def _fragment_length(config: TrainerConfig, env: BaseEnv) -> int:
    if config.num_envs_per_worker != env.num_envs:  # a vector env brings its own number
        config = config.changed(num_envs_per_worker=env.num_envs)
    if config.rollout_fragment_length == "auto" and config.count_steps_by == "agent_steps":
        return -(-config.fragment_length // max(len(env.possible_agents or ()), 1))
    return config.fragment_length
