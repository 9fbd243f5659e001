"""Which policy acts for whom: what a user's mapping may take and return, and whose spaces a policy has."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, MultiAgentEnv, PolicyError, RolloutWorker, SpaceError
from rollax.evaluation.policy_map import policy_mapping
from rollax.evaluation.worker_policies import space_of_agents
from tests.env.refused import refused
from tests.evaluation.worlds import Encode, Line

TABLE = {"a": "one"}
IDS = ["one", "two"]


@pytest.mark.parametrize(
    "function",
    [
        lambda agent: "one",
        lambda agent, episode: "one",
        lambda agent, table=TABLE: table[agent],
        lambda *arguments: "one",
        lambda agent, **more: "one",
        TABLE.__getitem__,
    ],
)
def test_what_a_mapping_may_take(function):
    mapping = policy_mapping(function, IDS)
    assert mapping is not None
    assert mapping("a", None) == "one"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda agent, episode, worker: "one", "(agent, episode, worker)"),
        (lambda: "one", "<lambda>()"),
        (lambda agent, *, worker: "one", "(agent, *, worker)"),
        (3, "is no function...got:      3"),
    ],
)
def test_what_it_may_not_take(function, says):
    refused(ConfigError, policy_mapping, function, IDS, says=f"{says}...expected: a function of (agent_id) or")


@pytest.mark.parametrize("returned", [None, 1, ["one"], np.array(["one", "two"]), "three"])
def test_what_it_may_not_return(returned):
    says = "policy_mapping_fn, agent 'a'...got:...expected: one of ['one', 'two']"
    refused(PolicyError, policy_mapping(lambda agent: returned, IDS), "a", None, says=says)


def test_what_it_raises():
    says = "The policy mapping raised KeyError: 'b'...policy_mapping_fn, agent 'b'"
    error = refused(PolicyError, policy_mapping(TABLE.__getitem__, IDS), "b", None, says=says)
    assert isinstance(error.__cause__, KeyError)


def test_in_a_worker():
    worker = RolloutWorker(Line, {"one": Encode, "two": Encode}, policy_mapping_fn=lambda agent: 1 / 0)
    refused(PolicyError, worker.sample, says="raised ZeroDivisionError...agent 'agent0'")


KNOWN = {"a": spaces.Box(-1, 1, (4,), np.float32)}


class Partly(MultiAgentEnv):
    """Declares two agents and names the spaces of one."""

    possible_agents = ("a", "b")
    observation_spaces = KNOWN
    action_spaces = {"a": spaces.Discrete(11)}


def test_a_space_that_is_missing():
    says = "An agent without observation_space...agent 'b' of policy...got:      spaces of ['a']"
    refused(SpaceError, RolloutWorker, lambda context: Partly(), Encode, says=says)
    mapping = policy_mapping(lambda agent: {"a": "one", "b": "two"}[agent], IDS)
    assert space_of_agents(KNOWN, "one", mapping, "observation_space", "ab") == KNOWN["a"]
    refused(
        SpaceError, space_of_agents, KNOWN, "two", mapping, "observation_space", "ab", says="agent 'b' of policy 'two'"
    )
    assert space_of_agents({}, "two", mapping, "observation_space", "ab") is None
    reads_episode = policy_mapping(lambda agent, episode: episode.x, IDS)
    says = "has no space...not known before an episode runs"
    refused(SpaceError, space_of_agents, KNOWN, "one", reads_episode, "space", "ab", says=says)
