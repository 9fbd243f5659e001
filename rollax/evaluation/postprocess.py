"""What happens to a fragment before it is learned from: each policy adds its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.policy.policy import Pieces, Policy, call_accepted


def postprocess(
    fragment: Mapping[str, tuple[SampleBatch, Pieces]], policies: Mapping[str, Policy]
) -> dict[str, SampleBatch]:
    """The batches of a fragment by policy, with `new_obs` where it is read and what the policies add.

    A policy that overrides `postprocess_trajectory` is called once per trajectory piece; all others once per fragment.
    """
    batches = {policy_id: _with_new_obs(policies[policy_id], *cut) for policy_id, cut in fragment.items()}
    done: dict[str, SampleBatch] = {}
    for policy_id, batch in batches.items():
        policy, pieces = policies[policy_id], fragment[policy_id][1]
        if type(policy).postprocess_trajectory is not Policy.postprocess_trajectory:
            done[policy_id] = _piece_by_piece(policy_id, batch, fragment, batches, policies)
        else:
            done[policy_id] = policy.postprocess_rows(batch, pieces)
    return done


def _with_new_obs(policy: Policy, batch: SampleBatch, pieces: Pieces) -> SampleBatch:
    if policy.batch_columns is None or SampleBatch.NEW_OBS in policy.batch_columns:
        following = np.minimum(np.arange(len(batch)) + 1, len(batch) - 1)
        new_obs = trees.index(batch[SampleBatch.OBS], following)
        trees.put(new_obs, pieces.last, pieces.next_obs)
        batch[SampleBatch.NEW_OBS] = new_obs
    return batch


def _piece_by_piece(
    policy_id: str,
    batch: SampleBatch,
    fragment: Mapping[str, Any],
    batches: Mapping[str, SampleBatch],
    policies: Mapping[str, Policy],
) -> SampleBatch:
    policy = policies[policy_id]
    by_episode: dict[int, dict[Any, tuple[Policy, SampleBatch]]] = {}
    for other_id, other in batches.items():
        for piece in _pieces(other, fragment[other_id][1]):
            agent = piece[SampleBatch.AGENT_ID][0] if SampleBatch.AGENT_ID in piece else other_id
            by_episode.setdefault(int(piece[SampleBatch.EPS_ID][0]), {})[agent] = (policies[other_id], piece)
    results = []
    for piece in _pieces(batch, fragment[policy_id][1]):
        agent = piece[SampleBatch.AGENT_ID][0] if SampleBatch.AGENT_ID in piece else policy_id
        others = {a: pair for a, pair in by_episode[int(piece[SampleBatch.EPS_ID][0])].items() if a != agent}
        results.append(call_accepted(policy.postprocess_trajectory, piece, other_agent_batches=others, episode=None))
    return SampleBatch.concat_samples(results)


def _pieces(batch: SampleBatch, pieces: Pieces) -> list[SampleBatch]:
    ends = (np.flatnonzero(pieces.last) + 1).tolist()
    return [batch[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
