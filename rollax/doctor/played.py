"""`Played`: what a trained policy sees, does and expects in a few episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollax.algorithms.trainer import Trainer
from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.doctor.activations import hidden_activations
from rollax.doctor.values import predicted_values
from rollax.errors import RollaxError
from rollax.ops.advantages import discounted_returns
from rollax.rollout.worker import RolloutWorker
from rollax.rollout.worker_set import worker_arguments

_MOST_STEPS = 20_000
_FRAGMENT = 200


@dataclass(frozen=True)
class Played:
    """The rows of one policy in whole episodes.

    Args:
        obs: columns of N observations, as the policy gets them.
        actions: columns of N actions, as the policy chooses them.
        env_actions: the same actions, as the environment gets them.
        returns: [N] discounted sums of the rewards from each row on, with the value after a truncated episode.
        weight_of_end: [N] the factor of the value after a truncated episode in `returns`, γ to the power of the
            remaining steps; 0 where the episode terminated.
        values: [N] the returns that the policy expects; None if it has no values, or values in other units.
        lengths: [E] steps of the episodes.
        truncated: [E] whether the episodes were truncated.
        activations: layer -> [N, units] outputs of the activation functions; empty if they are not known.
    """

    obs: trees.Tree
    actions: trees.Tree
    env_actions: trees.Tree
    returns: np.ndarray
    weight_of_end: np.ndarray
    values: np.ndarray | None
    lengths: np.ndarray
    truncated: np.ndarray
    activations: Mapping[str, np.ndarray]


def play_episodes(trainer: Trainer, num_episodes: int) -> dict[str, Played]:
    """Plays episodes with the trainer's policies; returns policy id -> its rows, for policies with rows.

    If all policies have state values, all explore, because state values are those of exploring policies. Otherwise, all
    act greedily. There is no limit to the length of an episode, but no further episode begins after 20,000 steps.

    Raises:
        RollaxError: the environment cannot be played.
    """
    if not trainer.can_evaluate:
        raise RollaxError(
            "There is no environment to play in.", "diagnose(play=...)", f"env={trainer.config.env!r}"
        ).expected("an environment that can be stepped", "pass play=0")
    worker = _worker(trainer)
    try:
        fragments = _sampled(worker, num_episodes)
        return {name: _played(worker, name, parts) for name, parts in fragments.items() if parts}
    finally:
        worker.stop()


def _worker(trainer: Trainer) -> RolloutWorker:
    config = trainer.config
    explores = all(_has_value(policy) for policy in trainer.worker.policies.values())
    changes: dict[str, Any] = {"num_envs_per_worker": 1, "batch_mode": "complete_episodes"}
    changes["rollout_fragment_length"] = _FRAGMENT
    config = config.for_evaluation(explores).changed(**changes)
    worker = RolloutWorker(**worker_arguments(config, trainer.policy_class))
    names = worker.policies
    worker.set_weights({name: part for name, part in trainer.worker.get_weights().items() if name in names})
    worker.set_filters({name: part for name, part in trainer.worker.get_filters().items() if name in names})
    worker.set_timestep(trainer.optimizer.steps)
    return worker


def _has_value(policy: Any) -> bool:
    return SampleBatch.ADVANTAGES in getattr(getattr(policy, "algorithm", None), "reads", ())


def _sampled(worker: RolloutWorker, num_episodes: int) -> dict[str, list[Fragment]]:
    """The segments of whole trajectories, by policy."""
    found: dict[str, list[Fragment]] = {name: [] for name in worker.policies}
    episodes = steps = 0
    while episodes < num_episodes and steps < _MOST_STEPS:
        fragments, sampled = worker.sampler.sample()
        steps += sampled
        episodes += len(worker.get_metrics())
        for name, fragment in fragments.items():
            found[name] += fragment.segments()
    return found


def _played(worker: RolloutWorker, name: str, segments: list[Fragment]) -> Played:
    runner = worker.runners[name]
    gamma = getattr(runner.policy.config, "gamma", worker.config.gamma)  # a policy may have its own
    columns = {key: trees.concat([segment[key] for segment in segments]) for key in segments[0]}
    after = {key: trees.concat([segment.after[key] for segment in segments]) for key in segments[0].after}
    ends = np.cumsum([len(segment) for segment in segments]) - 1
    rows = Fragment(columns, ends, after)
    values = predicted_values(runner.policy, rows)
    truncated = rows[SampleBatch.TRUNCATEDS][rows.ends].astype(bool)
    lengths = np.diff(rows.ends, prepend=-1)
    last = predicted_values(runner.policy, rows, after=True) if truncated.any() else None
    remaining = np.repeat(rows.ends, lengths) - np.arange(len(rows)) + 1
    actions = rows[SampleBatch.ACTIONS]
    return Played(
        obs=rows[SampleBatch.OBS],
        actions=actions,
        env_actions=runner.action_map(actions),
        returns=discounted_returns(rows, last, gamma=gamma).astype(np.float64),
        weight_of_end=np.where(np.repeat(truncated, lengths), gamma**remaining, 0.0),
        values=values,
        lengths=lengths,
        truncated=truncated,
        activations=hidden_activations(runner.policy, rows),
    )
