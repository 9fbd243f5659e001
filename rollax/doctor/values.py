"""The returns that a policy expects: V(s) of its critic, max Q(s, a), or Q(s, a) of the actions that it chose."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollax.algorithms.action_values import ActionValues
from rollax.algorithms.ddpg import DDPG
from rollax.algorithms.sac import SAC
from rollax.batch import Fragment, SampleBatch
from rollax.core import trees
from rollax.models.actor_with_critics import values_of_actions
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.policy import Policy

_ROWS = 1024


def predicted_values(policy: Policy, rows: Fragment, *, after: bool = False) -> np.ndarray | None:
    """Returns the expected returns [N] of the rows; with `after`, [P] of the observations after the P segments.

    The result is None for policies without such values, with memory, with a centralized critic, or with values in other
    units than rewards.
    """
    if not isinstance(policy, JaxPolicy) or policy.get_initial_state() or _other_units(policy):
        return None
    algorithm, obs = policy.algorithm, rows.after[SampleBatch.OBS] if after else rows[SampleBatch.OBS]
    if SampleBatch.ADVANTAGES in algorithm.reads and SampleBatch.VALUE_TARGETS in algorithm.reads:
        if SampleBatch.CRITIC_OBS in rows.after:
            return None
        memory = {key: column for key, column in rows.after.items() if after and key != SampleBatch.OBS}
        values = policy.compute_values(obs, memory)
        return None if values.ndim > 1 else np.asarray(values, np.float64)
    if isinstance(algorithm, ActionValues):
        outputs = np.concatenate([policy.model_outputs(part)[0] for part in _parts(obs)])
        return outputs.max(axis=-1).astype(np.float64) if outputs.ndim == 2 else None
    if isinstance(algorithm, SAC | DDPG):
        actions = policy.compute_actions(obs, explore=False)[0] if after else rows[SampleBatch.ACTIONS]
        return _of_critics(policy, obs, actions)
    return None


def _other_units(policy: JaxPolicy) -> bool:
    config = policy.config
    names = ("normalize_rewards", "use_h_function", "exploration_bonus", "clip_rewards")
    return any(getattr(config, name, None) for name in names) or "reward_scale" in policy.algorithm.statistics


def _of_critics(policy: JaxPolicy, obs: Any, actions: Any) -> np.ndarray:
    """[N] the mean of the critics, each with the mean of its outputs, such as quantiles."""
    model, parts = policy.current_model(), []
    for some, chosen in zip(_parts(obs), _parts(actions), strict=True):
        values = np.asarray(values_of_actions(model.critics, some, chosen, policy.action_space))
        parts.append(values.reshape(*values.shape[:2], -1).mean(axis=(0, 2)))
    return np.concatenate(parts).astype(np.float64)


def _parts(columns: Any) -> list[Any]:
    return [trees.index(columns, slice(first, first + _ROWS)) for first in range(0, trees.length(columns), _ROWS)]
