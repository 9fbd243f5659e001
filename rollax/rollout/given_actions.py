"""Actions that a policy did not choose itself: logged by an environment, or of an earlier version of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rollax.batch import SampleBatch
from rollax.core import trees
from rollax.errors import PolicyError
from rollax.rollout.policy_runner import PolicyRunner

MOST_LOGP_CHANGE = 5.0
"""The largest difference between the log-probabilities of one action under two versions of a policy: a ratio of 148."""


def check_off_policy(runner: PolicyRunner) -> None:
    """Raises a PolicyError if the policy cannot learn from off-policy actions."""
    if not runner.accepts_off_policy:
        raise PolicyError(
            "The policy learns only from its own actions, but got off-policy ones.",
            runner.policy.label,
            "an action that the environment has logged (log_action, off_policy_actions)",
        ).expected(
            "actions of this policy only",
            "use an off-policy algorithm, leave the policy out of multiagent.policies_to_train, start the episode "
            "with training_enabled=False, or set accept_off_policy_actions=True to learn from them as if they "
            "were its own",
        )


def with_given_actions(
    runner: PolicyRunner,
    actions: trees.Tree,
    fetches: dict[str, Any],
    rows: np.ndarray,
    given: Sequence[Any],
    logps: Mapping[int, float] = MappingProxyType({}),
) -> tuple[trees.Tree, dict[str, Any]]:
    """The policy's [N] `actions` and `fetches`, where the environment's actions `given` replace the rows `rows`.

    `logps` (row -> log-probability) belong to actions that an earlier version of the policy has chosen. They come from
    clients, and the loss exponentiates their difference from the log-probabilities of the current version: the
    difference is therefore clipped to ± `MOST_LOGP_CHANGE`, if `fetches_of` returns the latter.

    Raises:
        PolicyError: the given actions do not have the structure of the action space.
    """
    columns = runner.action_map.to_policy(runner.action_columns(list(given)))
    actions = trees.tree_map(np.array, actions)
    trees.put(actions, rows, columns)
    current = runner.policy.fetches_of(actions, fetches)
    fetches = {**fetches, **current}
    if logps and SampleBatch.ACTION_LOGP in fetches:
        known = np.fromiter(logps, np.int64, len(logps))
        logp = np.array(fetches[SampleBatch.ACTION_LOGP])
        sent = np.fromiter(logps.values(), np.float64, len(logps))
        if SampleBatch.ACTION_LOGP in current:
            sent = np.clip(sent, logp[known] - MOST_LOGP_CHANGE, logp[known] + MOST_LOGP_CHANGE)
        logp[known] = sent
        fetches[SampleBatch.ACTION_LOGP] = logp
    return actions, fetches
