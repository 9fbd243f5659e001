"""Postprocessing of a fragment: each policy adds its columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from rollax.batch import Fragment, SampleBatch
from rollax.core.introspection import call_accepted, overrides
from rollax.errors import PolicyError
from rollax.policy.policy import Policy

if TYPE_CHECKING:
    from rollax.rollout.centralized_critic import JointRows

BY_TRAJECTORY = frozenset({SampleBatch.AGENT_ID, SampleBatch.TRAJECTORY_ID, SampleBatch.T})
"""Columns that all policies store if one overrides `postprocess_trajectory`: they identify agents and align steps."""
_NEXT = {SampleBatch.OBS: SampleBatch.NEW_OBS, SampleBatch.STATE_IN: SampleBatch.STATE_OUT}

_Agents = dict[Hashable, tuple[Policy, list[Fragment]]]


def overrides_trajectory(policy: Policy) -> bool:
    """Whether the policy is called once per trajectory segment."""
    return overrides(type(policy), Policy, "postprocess_trajectory")


def postprocess(
    fragments: Mapping[str, Fragment],
    policies: Mapping[str, Policy],
    episode_of: Callable[[int], Any] = lambda _: None,
    joint_rows: JointRows | None = None,
) -> dict[str, SampleBatch]:
    """Each policy's fragment with the columns that the policy adds, and `new_obs` and `state_out` if it may read them.

    A policy that overrides `postprocess_trajectory` is called once per trajectory segment, all others once per
    fragment.

    Args:
        fragments: policy id -> its rows; columns are added to them.
        policies: policy id -> policy.
        episode_of: episode id -> the `episode` of `postprocess_trajectory`.
        joint_rows: joins the rows of all agents for policies with a centralized critic; None without one.
    """
    if joint_rows is not None:
        joined = joint_rows.join(fragments, [name for name in fragments if policies[name].sees_all_agents])
        for policy_id, (now, after) in joined.items():
            fragments[policy_id][SampleBatch.CRITIC_OBS] = now
            fragments[policy_id].after[SampleBatch.CRITIC_OBS] = after
    for policy_id, fragment in fragments.items():
        read = policies[policy_id].sampled_columns
        for name, next_name in _NEXT.items():
            if name in fragment and (read is None or next_name in read):
                fragment[next_name] = fragment.following(name)
        policies[policy_id].prepare_rows(fragment)
    by_trajectory = {policy_id for policy_id in fragments if overrides_trajectory(policies[policy_id])}
    agents = _by_episode(fragments, policies) if by_trajectory else {}
    done = {}
    for policy_id, fragment in fragments.items():
        policy = policies[policy_id]
        if policy_id not in by_trajectory:
            done[policy_id] = _checked(policy.postprocess_rows(fragment), policy, "postprocess_rows")
            continue
        results = []
        for segment in fragment.segments():
            episode_id, agent = _episode_and_agent(segment)
            others = {
                other: (others_policy, SampleBatch.concat_samples(segments))
                for other, (others_policy, segments) in agents[episode_id].items()
                if other != agent
            }
            context = {"other_agent_batches": others, "episode": episode_of(episode_id)}
            result = call_accepted(policy.postprocess_trajectory, segment, **context)
            results.append(_checked(result, policy, "postprocess_trajectory"))
        done[policy_id] = SampleBatch.concat_samples(results)
    return done


def _checked(result: Any, policy: Policy, method: str) -> SampleBatch:
    if isinstance(result, SampleBatch):
        return result
    raise PolicyError(f"{method} of a policy has not returned a batch.", f"{policy.label}: {method}", result).expected(
        "the SampleBatch that it was given, with further columns",
        f"end it with: return super().{method}(...), or return the batch",
    )


def _by_episode(fragments: Mapping[str, Fragment], policies: Mapping[str, Policy]) -> dict[int, _Agents]:
    """Episode id -> agent id -> its policy and its segments; several segments if an agent ended and returned."""
    agents: dict[int, _Agents] = {}
    for policy_id, fragment in fragments.items():
        # Copies, so that a policy's changes in place are not visible to others.
        for segment in fragment.copy().segments():
            episode_id, agent = _episode_and_agent(segment)
            in_episode = agents.setdefault(episode_id, {})
            in_episode.setdefault(agent, (policies[policy_id], []))[1].append(segment)
    return agents


def _episode_and_agent(segment: Fragment) -> tuple[int, Hashable]:
    return int(segment[SampleBatch.EPS_ID][0]), segment[SampleBatch.AGENT_ID][0]
