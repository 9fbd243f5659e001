"""Random schedules of agents over many fragments: the sampler's rows equal those of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax import RolloutWorker
from tests.rollout.reference import Auditor, histories
from tests.rollout.worlds import ALL, Asynchronous, Encode, Scripted

AGENTS = "abcd"


@st.composite
def scripts(draw, waiting: bool) -> list[dict]:
    """One episode. Agents appear, act, wait for their turn or for rewards, end in every way, and return.

    Args:
        draw: given by hypothesis.
        waiting: steps after which no agent acts are allowed.
    """
    at_first = draw(st.sets(st.sampled_from(AGENTS), min_size=1))
    episode: list[dict] = [dict.fromkeys(sorted(at_first), "o")]
    alive = set(at_first)
    for _ in range(draw(st.integers(0, 7))):
        step, acting, before = {}, set(), set(alive)
        for agent in AGENTS:
            if agent in alive:
                does = draw(st.sampled_from(["", "r", "o", "or", "or", "or", "T", "rC", "oT", "orTC"]))
            else:
                does = draw(st.sampled_from(["", "", "o", "oT"]))
            if not does:
                continue
            step[agent] = does
            if "T" in does or "C" in does:
                alive.discard(agent)
            elif "o" in does:
                alive.add(agent)
                acting.add(agent)
        # Some agent acts next, or at least has a value: an empty poll is not a step.
        if not acting and not (waiting and before & step.keys()):
            agent = draw(st.sampled_from(AGENTS))
            step[agent] = "or" if agent in alive else "o"
            alive.add(agent)
        episode.append(step)
    last = {agent: draw(st.sampled_from(["", "r", "o", "or", "T", "orC"])) for agent in sorted(alive)}
    episode.append({**last, ALL: draw(st.sampled_from(["T", "C", "TC"]))})
    return episode


def run(env, num_envs: int, two_policies: bool, mode: str, fragment: int) -> None:
    specs = {"x": Encode, "y": Encode} if two_policies else Encode
    mapping = (lambda agent, episode: "xy"[(ord(agent) + episode.env_index) % 2]) if two_policies else None
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": fragment, "batch_mode": mode}
    worker = RolloutWorker(env, specs, policy_mapping_fn=mapping, config=config)
    envs = worker.env.get_sub_environments()
    auditor = Auditor(envs, whole_episodes=mode == "complete_episodes")
    learned, metrics = 0.0, []
    for _ in range(6):
        fragments, _ = worker.sampler.sample()
        auditor.check(fragments)
        learned += sum(float(np.sum(batch["rewards"], dtype=np.float64)) for batch in fragments.values())
        metrics += worker.get_metrics()
    logged = histories(envs)
    # Rows, trajectories and episodes have the same sums of rewards.
    assert sum(m.reward for m in metrics) == sum(reward for history in logged for reward, _, _ in history.episodes)
    assert sorted(m.length for m in metrics) == sorted(
        length for history in logged for _, length, _ in history.episodes
    )
    for found in metrics:
        assert found.reward == sum(sum(rewards) for rewards in found.policy_rewards.values())
    if mode == "complete_episodes":
        assert learned == sum(m.reward for m in metrics)


PARAMETERS = {
    "two_policies": st.booleans(),
    "mode": st.sampled_from(["truncate_episodes", "complete_episodes"]),
    "fragment": st.integers(1, 6),
    "num_envs": st.integers(1, 3),
}


@pytest.mark.filterwarnings("default")
class TestRandomSchedules:
    @given(episodes=st.lists(scripts(waiting=False), min_size=1, max_size=3), **PARAMETERS)
    def test_multi_agent_env(self, episodes, two_policies, mode, fragment, num_envs):
        run(lambda c: Scripted(episodes, c.vector_index), num_envs, two_policies, mode, fragment)

    @pytest.mark.long
    @given(
        episodes=st.lists(scripts(waiting=True), min_size=1, max_size=3), restarts_itself=st.booleans(), **PARAMETERS
    )
    def test_asynchronous_base_env(self, episodes, restarts_itself, two_policies, mode, fragment, num_envs):
        base = Asynchronous([Scripted(episodes, i) for i in range(num_envs)], restarts_itself)
        run(lambda _: base, 1, two_policies, mode, fragment)
