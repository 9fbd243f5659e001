"""What happens to a fragment before it is learned from: each policy adds its columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollax import trees
from rollax.batch import SampleBatch
from rollax.evaluation.joint_rows import JointRows
from rollax.policy.policy import NEXT_COLUMN, Policy, Segments, call_accepted

BY_TRAJECTORY = frozenset({SampleBatch.AGENT_ID, SampleBatch.TRAJECTORY_ID, SampleBatch.T})
"""The columns that every policy stores where one is called by trajectory: they tell agents apart and align them."""

_AgentSegments = dict[Hashable, tuple[Policy, list[SampleBatch]]]


def overrides_trajectory(policy: Policy) -> bool:
    """True where the policy wants to be called once per trajectory segment."""
    return type(policy).postprocess_trajectory is not Policy.postprocess_trajectory


def postprocess(
    fragment: Mapping[str, tuple[SampleBatch, Segments]],
    policies: Mapping[str, Policy],
    episode_of: Callable[[int], Any] = lambda _: None,
    joint_rows: JointRows | None = None,
) -> dict[str, SampleBatch]:
    """The batches of a fragment by policy, with `new_obs` where it may be read, and what the policies add.

    A policy that overrides `postprocess_trajectory` is called once per trajectory segment; all others once per
    fragment.

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
        policy, segments = policies[policy_id], fragment[policy_id][1]
        if policy_id not in by_trajectory:
            done[policy_id] = policy.postprocess_rows(batch, segments)
            continue
        results = []
        for segment in _segments(batch, segments):
            episode_id, agent = _episode_and_agent(segment)
            others = {
                other: (others_policy, SampleBatch.concat_samples(trajectories))
                for other, (others_policy, trajectories) in agents[episode_id].items()
                if other != agent
            }
            context = {"other_agent_batches": others, "episode": episode_of(episode_id)}
            results.append(call_accepted(policy.postprocess_trajectory, segment, **context))
        done[policy_id] = SampleBatch.concat_samples(results)
    return done


def _with_critic_obs(
    fragment: Mapping[str, tuple[SampleBatch, Segments]], policies: Mapping[str, Policy], joint_rows: JointRows
) -> dict[str, tuple[SampleBatch, Segments]]:
    joined = joint_rows.join(fragment, [policy_id for policy_id in fragment if policies[policy_id].sees_all_agents])
    cuts = dict(fragment)
    for policy_id, (critic_obs, next_critic_obs) in joined.items():
        batch, segments = cuts[policy_id]
        batch[SampleBatch.CRITIC_OBS] = critic_obs
        further = {**segments.next_memory, SampleBatch.CRITIC_OBS: next_critic_obs}
        cuts[policy_id] = batch, replace(segments, next_memory=further)
    return cuts


def _with_next_inputs(policy: Policy, batch: SampleBatch, segments: Segments, *, always: bool) -> SampleBatch:
    """Fills `new_obs`, and what goes with it into a policy with memory, where they may be read, or always."""
    wanted = policy.batch_columns
    all_of_them = wanted is None or always
    after_last = {SampleBatch.OBS: segments.next_obs, **segments.next_memory}
    for column, name in NEXT_COLUMN.items():
        if column in batch and column in after_last and (all_of_them or name in (wanted or ())):
            batch[name] = _following(batch[column], segments.last, after_last[column])
    return batch


def _following(column: trees.Tree, last: np.ndarray, after_last: trees.Tree) -> trees.Tree:
    """What follows each row: the next row of its segment, or after the segment's last one what is given."""
    following = trees.index(column, np.minimum(np.arange(len(last)) + 1, len(last) - 1))
    trees.put(following, last, after_last)
    return following


def _by_episode(
    batches: Mapping[str, SampleBatch],
    fragment: Mapping[str, tuple[SampleBatch, Segments]],
    policies: Mapping[str, Policy],
) -> dict[int, _AgentSegments]:
    """Episode id -> agent id -> its policy and its segments: several where an agent ended and came back."""
    agents: dict[int, _AgentSegments] = {}
    for policy_id, batch in batches.items():
        # Copies: whoever changes its own rows in place shall not change them under the eyes of the others.
        for segment in _segments(batch.copy(), fragment[policy_id][1]):
            episode_id, agent = _episode_and_agent(segment)
            in_episode = agents.setdefault(episode_id, {})
            in_episode.setdefault(agent, (policies[policy_id], []))[1].append(segment)
    return agents


def _episode_and_agent(segment: SampleBatch) -> tuple[int, Hashable]:
    return int(segment[SampleBatch.EPS_ID][0]), segment[SampleBatch.AGENT_ID][0]


def _segments(batch: SampleBatch, segments: Segments) -> list[SampleBatch]:
    ends = (np.flatnonzero(segments.last) + 1).tolist()
    return [batch[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
