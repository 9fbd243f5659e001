"""What happens to a fragment before it is learned from: each policy adds its columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.evaluation.joint_rows import JointRows
from rollax.policy.policy import NEXT_COLUMN, Pieces, Policy, call_accepted

BY_TRAJECTORY = frozenset({SampleBatch.AGENT_ID, SampleBatch.LIFE_ID, SampleBatch.T})
"""The columns that every policy stores where one is called by trajectory: they tell agents apart and align them."""

_AgentPieces = dict[Hashable, tuple[Policy, list[SampleBatch]]]


def overrides_trajectory(policy: Policy) -> bool:
    """True where the policy wants to be called once per trajectory piece."""
    return type(policy).postprocess_trajectory is not Policy.postprocess_trajectory


def postprocess(
    fragment: Mapping[str, tuple[SampleBatch, Pieces]],
    policies: Mapping[str, Policy],
    episode_of: Callable[[int], Any] = lambda _: None,
    joint_rows: JointRows | None = None,
) -> dict[str, SampleBatch]:
    """The batches of a fragment by policy, with `new_obs` where it may be read, and what the policies add.

    A policy that overrides `postprocess_trajectory` is called once per trajectory piece; all others once per fragment.

    Args:
        fragment: policy id -> its rows, and where their trajectories end.
        policies: policy id -> policy.
        episode_of: episode id -> the `Episode` that `postprocess_trajectory` is given.
        joint_rows: joins the agents' rows for policies that see all agents; None where there is no such policy.
    """
    if joint_rows is not None:
        fragment = _with_critic_obs(fragment, policies, joint_rows)
    by_trajectory = {policy_id for policy_id in fragment if overrides_trajectory(policies[policy_id])}
    batches = {
        policy_id: _with_next_inputs(policies[policy_id], *cut, always=bool(by_trajectory))
        for policy_id, cut in fragment.items()
    }
    agents = _by_episode(batches, fragment, policies) if by_trajectory else {}
    done: dict[str, SampleBatch] = {}
    for policy_id, batch in batches.items():
        policy, pieces = policies[policy_id], fragment[policy_id][1]
        if policy_id not in by_trajectory:
            done[policy_id] = policy.postprocess_rows(batch, pieces)
            continue
        results = []
        for piece in _pieces(batch, pieces):
            episode_id, agent = _episode_and_agent(piece)
            others = {
                other: (others_policy, SampleBatch.concat_samples(lives))
                for other, (others_policy, lives) in agents[episode_id].items()
                if other != agent
            }
            context = {"other_agent_batches": others, "episode": episode_of(episode_id)}
            results.append(call_accepted(policy.postprocess_trajectory, piece, **context))
        done[policy_id] = SampleBatch.concat_samples(results)
    return done


def _with_critic_obs(
    fragment: Mapping[str, tuple[SampleBatch, Pieces]], policies: Mapping[str, Policy], joint_rows: JointRows
) -> dict[str, tuple[SampleBatch, Pieces]]:
    joined = joint_rows.join(fragment, [policy_id for policy_id in fragment if policies[policy_id].sees_all_agents])
    cuts = dict(fragment)
    for policy_id, (critic_obs, next_critic_obs) in joined.items():
        batch, pieces = cuts[policy_id]
        batch[SampleBatch.CRITIC_OBS] = critic_obs
        further = {**pieces.next_memory, SampleBatch.CRITIC_OBS: next_critic_obs}
        cuts[policy_id] = batch, replace(pieces, next_memory=further)
    return cuts


def _with_next_inputs(policy: Policy, batch: SampleBatch, pieces: Pieces, *, always: bool) -> SampleBatch:
    """Fills `new_obs`, and what goes with it into a policy with memory, where they may be read, or always."""
    wanted = policy.batch_columns
    all_of_them = wanted is None or always
    after_last = {SampleBatch.OBS: pieces.next_obs, **pieces.next_memory}
    for column, name in NEXT_COLUMN.items():
        if column in batch and column in after_last and (all_of_them or name in (wanted or ())):
            batch[name] = _following(batch[column], pieces.last, after_last[column])
    return batch


def _following(column: trees.Tree, last: np.ndarray, after_last: trees.Tree) -> trees.Tree:
    """What follows each row: the next row of its piece, or after the piece's last one what is given."""
    following = trees.index(column, np.minimum(np.arange(len(last)) + 1, len(last) - 1))
    trees.put(following, last, after_last)
    return following


def _by_episode(
    batches: Mapping[str, SampleBatch],
    fragment: Mapping[str, tuple[SampleBatch, Pieces]],
    policies: Mapping[str, Policy],
) -> dict[int, _AgentPieces]:
    """Episode id -> agent id -> its policy and its pieces: several where an agent ended and came back."""
    agents: dict[int, _AgentPieces] = {}
    for policy_id, batch in batches.items():
        # Copies: whoever changes its own rows in place shall not change them under the eyes of the others.
        for piece in _pieces(batch.copy(), fragment[policy_id][1]):
            episode_id, agent = _episode_and_agent(piece)
            in_episode = agents.setdefault(episode_id, {})
            in_episode.setdefault(agent, (policies[policy_id], []))[1].append(piece)
    return agents


def _episode_and_agent(piece: SampleBatch) -> tuple[int, Hashable]:
    return int(piece[SampleBatch.EPS_ID][0]), piece[SampleBatch.AGENT_ID][0]


def _pieces(batch: SampleBatch, pieces: Pieces) -> list[SampleBatch]:
    ends = (np.flatnonzero(pieces.last) + 1).tolist()
    return [batch[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
