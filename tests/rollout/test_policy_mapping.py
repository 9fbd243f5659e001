"""The mapping of agents to policies: its signatures, its calls in a worker, and its errors."""

import numpy as np
import pytest

from rollax import ConfigError, PolicyError, RolloutWorker
from rollax.rollout.policy_mapping import policy_mapping
from tests.env.refused import refused
from tests.rollout.worlds import ALL, TOGETHER, Encode, scripted

TABLE = {"a": "one"}
IDS = ["one", "two"]
RETURNING = [{"a": "o", "b": "o"}, {"a": "oT", "b": "or"}, {"a": "o", "b": "or"}, {"a": "or", "b": "or", ALL: "T"}]


class TestMapping:
    def run(self, mapping, scripts=(RETURNING,), fragments=3, num_envs=2):
        worker = RolloutWorker(
            scripted(*scripts),
            {"x": Encode, "y": Encode},
            policy_mapping_fn=mapping,
            config={"rollout_fragment_length": 5, "num_envs_per_worker": num_envs},
        )
        return [worker.sample() for _ in range(fragments)]

    def test_called_once_per_agent_and_episode(self):
        asked: list[tuple] = []

        def mapping(agent_id, episode):
            asked.append((episode.env_index, episode.episode_id, agent_id))
            return "xy"[len(asked) % 2]

        batches = self.run(mapping)
        assert len(set(asked)) == len(asked) > 8
        chosen: dict[tuple, set] = {}
        for batch in batches:
            for policy_id, rows in batch.items():
                for episode_id, agent in zip(rows["eps_id"], rows["agent_id"], strict=True):
                    chosen.setdefault((episode_id, agent), set()).add(policy_id)
        assert {len(policies) for policies in chosen.values()} == {1}
        assert set().union(*chosen.values()) == {"x", "y"}

    @pytest.mark.parametrize(
        "mapping", [lambda agent_id, episode=None: "x" if episode.policies else "y", lambda *a: "xy"[a[1].env_index]]
    )
    def test_other_signatures_with_the_episode(self, mapping):
        assert set(self.run(mapping)[0]) == {"x", "y"}

    def test_several_policies_need_a_mapping(self):
        with pytest.raises(ConfigError, match="Several policies require a policy mapping"):
            RolloutWorker(scripted(TOGETHER), {"x": Encode, "y": Encode})


@pytest.mark.parametrize(
    "function",
    [
        lambda agent: "one",
        lambda agent, episode: "one",
        lambda agent, table=TABLE: table[agent],
        lambda *arguments: "one",
        lambda agent, **more: "one",
        TABLE.__getitem__,
        TABLE.get,
    ],
)
def test_accepted_signatures(function):
    mapping = policy_mapping(function, IDS)
    assert mapping is not None
    assert mapping("a", None) == "one"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda agent, episode, worker: "one", "(agent, episode, worker)"),
        (lambda: "one", "<lambda>()"),
        (lambda agent, *, worker: "one", "(agent, *, worker)"),
        (3, "is not a function...got:      3"),
    ],
)
def test_refused_signatures(function, says):
    refused(ConfigError, policy_mapping, function, IDS, says=f"{says}...expected: a function of (agent_id) or")


@pytest.mark.parametrize("returned", [None, 1, ["one"], np.array(["one", "two"]), "three"])
def test_refused_return_values(returned):
    says = "policy_mapping_fn, agent 'a'...got:...expected: one of ['one', 'two']"
    refused(PolicyError, policy_mapping(lambda agent: returned, IDS), "a", None, says=says)


def test_errors_of_a_mapping():
    says = "The policy mapping raised KeyError: 'b'...policy_mapping_fn, agent 'b'"
    error = refused(PolicyError, policy_mapping(TABLE.__getitem__, IDS), "b", None, says=says)
    assert isinstance(error.__cause__, KeyError)
