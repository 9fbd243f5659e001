"""Random schedules of agents over many fragments: the sampler's rows equal those of the reference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollax import RolloutWorker
from rollax.batch import Fragment
from tests.rollout.reference import Auditor, histories
from tests.rollout.worlds import ALL, Asynchronous, Encode, Scripted, scripted

AGENTS = "abcd"


@st.composite
def scripts(draw, *, waiting: bool = False, all_act: bool = False) -> list[dict]:
    """One episode. Agents appear, act, wait for their turn or for rewards, end in every way, and return.

    Args:
        draw: given by hypothesis.
        waiting: steps after which no agent acts are allowed.
        all_act: all living agents act at every step, as in PettingZoo's parallel API.
    """
    alive = set(draw(st.sets(st.sampled_from(AGENTS), min_size=1)))
    continues = ["o", "or", "or"] if all_act else ["", "r", "o", "or", "or", "or"]
    events = st.sampled_from([*continues, "T", "rC", "oT", "rTC", "orC", "orTC"])
    appears = st.sampled_from(["", "", "o", "oT"])
    episode: list[dict] = [dict.fromkeys(sorted(alive), "o")]
    for _ in range(draw(st.integers(0, 7))):
        step = {agent: does for agent in AGENTS if (does := draw(events if agent in alive else appears))}
        ended = {agent for agent, does in step.items() if "T" in does or "C" in does}
        acting = {agent for agent, does in step.items() if "o" in does} - ended
        waits = waiting and alive & step.keys()
        alive = (alive | acting) - ended
        # Some agent acts next, or at least has a value: an empty poll is not a step.
        if not acting and not waits:
            actor = draw(st.sampled_from(AGENTS))
            step[actor] = "or" if actor in alive else "o"
            alive.add(actor)
        episode.append(step)
    last = {agent: draw(st.sampled_from(["", "r", "o", "or", "T", "orC", "orTC"])) for agent in sorted(alive)}
    return [*episode, {**last, ALL: draw(st.sampled_from(["T", "C", "TC"]))}]


def run(
    make: Any,
    specs: Any,
    mapping: Any,
    mode: str,
    fragment: int,
    num_envs: int,
    log_of: Callable[[Any], Any] = lambda env: env,
    read: Callable[[Fragment], Fragment] = lambda fragment: fragment,
) -> None:
    """Samples, and compares the batches, as `read` returns them, and the metrics with what `log_of` returns of each
    environment."""
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": fragment, "batch_mode": mode}
    worker = RolloutWorker(make, specs, policy_mapping_fn=mapping, config=config)
    logs = [log_of(env) for env in worker.env.get_sub_environments()]
    auditor = Auditor(logs, whole_episodes=mode == "complete_episodes")
    learned, metrics = 0.0, []
    for _ in range(5):
        fragments = {policy_id: read(batch) for policy_id, batch in worker.sampler.sample()[0].items()}
        auditor.check(fragments)
        learned += sum(float(np.sum(batch["rewards"], dtype=np.float64)) for batch in fragments.values())
        metrics += worker.get_metrics()
    # Rows, trajectories and episodes have the same sums of rewards.
    episodes = [episode for history in histories(logs) for episode in history.episodes]
    assert sum(m.reward for m in metrics) == sum(reward for reward, _, _ in episodes)
    assert sorted(m.length for m in metrics) == sorted(length for _, length, _ in episodes)
    for found in metrics:
        assert found.reward == sum(sum(rewards) for rewards in found.policy_rewards.values())
    if mode == "complete_episodes":
        assert learned == sum(m.reward for m in metrics)


def two(policies: bool) -> tuple[Any, Any]:
    """The policies of a worker and their mapping: two, or one."""
    if not policies:
        return Encode, None
    return {"x": Encode, "y": Encode}, lambda agent, episode: "xy"[(ord(agent) + episode.env_index) % 2]


PARAMETERS = {
    "mode": st.sampled_from(["truncate_episodes", "complete_episodes"]),
    "fragment": st.integers(1, 6),
    "num_envs": st.integers(1, 3),
}


@pytest.mark.filterwarnings("default")
class TestRandomSchedules:
    @given(episodes=st.lists(scripts(), min_size=1, max_size=3), two_policies=st.booleans(), **PARAMETERS)
    def test_multi_agent_env(self, episodes, two_policies, mode, fragment, num_envs):
        run(scripted(*episodes), *two(two_policies), mode, fragment, num_envs)

    @pytest.mark.long
    @given(
        episodes=st.lists(scripts(waiting=True), min_size=1, max_size=3),
        restarts_itself=st.booleans(),
        two_policies=st.booleans(),
        **PARAMETERS,
    )
    def test_asynchronous_base_env(self, episodes, restarts_itself, two_policies, mode, fragment, num_envs):
        base = Asynchronous([Scripted(episodes, i) for i in range(num_envs)], restarts_itself)
        run(lambda _: base, *two(two_policies), mode, fragment, 1)
