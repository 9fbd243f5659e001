"""The Python client: its requests, return values and errors."""

from typing import Any

import numpy as np
import pytest

from rollax import ConfigError, EpisodeLostError, PolicyClient, RequestError
from rollax.serving.protocol import Episode, Trajectory
from rollax.serving.remote_inference import converter, of_space
from rollax.serving.server import PolicyServer
from tests.env.refused import raised
from tests.python_process import output_of
from tests.serving.fake_server import BOX, DISCRETE, MAX_BODY_BYTES, FakeServer, over_http, over_websocket
from tests.serving.served_policies import RecordingBackend, observations, runner
from tests.serving.service_session import refused

OBS = np.array([0.5, -0.25], np.float32)
WITHOUT_JAX = """
import sys
from rollax import EpisodeLostError, PolicyClient
with PolicyClient(sys.argv[1]) as client:
    episode = client.start_episode()
    assert client.get_action(episode, [0.0, 0.0]) == 0
    client.end_episode(episode, [0.0, 0.0])
print([name for name in ("jax", "flax", "ray", "pydantic", "gymnasium", "uvicorn") if name in sys.modules])
"""


def test_remote_mode_imports_nothing_heavy(over):
    with over(FakeServer()) as address:
        assert output_of("-c", WITHOUT_JAX, address) == "[]\n"


def test_infos_with_nan(fake, client):
    client.log_returns(client.start_episode(), 1.0, {"a": float("nan"), "b": {"c": np.array([1.0, np.inf])}})
    assert fake.executed[-1][1]["info"] == {"a": None, "b": {"c": [1.0, None]}}


def test_values_are_sent_as_arrays_over_websockets_and_as_lists_over_http():
    sent = []
    for over in (over_http, over_websocket):
        fake = FakeServer()
        with over(fake) as address, PolicyClient(address) as client:
            episode = client.start_episode("e")
            client.log_action(episode, {"a": OBS, "b": np.int64(3)}, np.float32(0.5))
        sent.append(fake.executed[-1])
    assert sent[0] == ("log_action", {"episode_id": "e", "obs": {"a": [0.5, -0.25], "b": 3}, "action": 0.5})
    array = {"dtype": "<f4", "shape": [2], "data": OBS.tobytes()}
    assert sent[1] == ("log_action", {"episode_id": "e", "obs": {"a": array, "b": 3}, "action": 0.5})


def test_actions_have_the_type_of_their_space(over):
    with over(FakeServer()) as address, PolicyClient(address) as client:
        action = client.get_action(client.start_episode(), OBS)
        assert type(action) is int
        assert client.version == 1
    with over(FakeServer(action_space=BOX)) as address, PolicyClient(address) as client:
        action = client.get_action(client.start_episode(), OBS)
        assert (action.dtype, action.tolist()) == (np.float32, [0.0, 0.5])


def test_actions_have_the_keys_of_their_space():
    convert = of_space({"type": "Dict", "spaces": [[0, DISCRETE], [1, {"type": "Dict", "spaces": [["a", DISCRETE]]}]]})
    assert convert({"0": 2, "1": {"a": 1}}) == {0: 2, 1: {"a": 1}}


def test_actions_have_the_type_of_their_policys_space():
    pair = {"type": "Tuple", "spaces": [DISCRETE, BOX]}
    policies = {"go": {"action_space": DISCRETE}, "aim": {"action_space": pair}}
    hello = {"multi_agent": True, "policies": policies}
    action = converter(hello)({"aim": [2, [0.0, 0.5]], "go": 1})
    assert (type(action["aim"]), action["aim"][1].dtype, action["go"]) == (tuple, np.float32, 1)
    convert = converter(hello, lambda agent: agent.rstrip("0123456789"))
    assert isinstance(convert({"aim1": [2, [0.0, 0.5]]})["aim1"], tuple)
    raised(RequestError, convert, {"stay1": 1}, says="has no policy...'stay' for agent 'stay1'")


def test_many_episodes_in_one_message(fake, client):
    episodes = [client.start_episode() for _ in range(3)]
    client.get_action(episodes[0], OBS)
    assert client.get_actions(dict.fromkeys(episodes, OBS)) == dict(zip(episodes, [1, 0, 0], strict=True))
    assert fake.requests.count("get_actions") == 1
    assert client.get_actions({}) == {}
    raised(EpisodeLostError, client.get_actions, {"nobody": OBS, episodes[0]: OBS}, says="nobody")


def test_all_verbs_send_their_arguments(fake, client):
    assert client.hello()["server"] == "fake"
    client.start_episode("e", training_enabled=False)
    client.log_returns("e", 1.5, {"speed": 2})
    client.end_agents("e", {"left": [1.0], "right": None}, truncated=True)
    client.end_episode("e", [0.0, 1.0], truncated=True)
    assert fake.executed == [
        ("start_episode", {"episode_id": "e", "training_enabled": False}),
        ("log_returns", {"episode_id": "e", "reward": 1.5, "info": {"speed": 2}}),
        ("end_agents", {"episode_id": "e", "observations": {"left": [1.0], "right": None}, "truncated": True}),
        ("end_episode", {"episode_id": "e", "obs": [0.0, 1.0], "truncated": True}),
    ]


def test_an_episode_as_an_object(fake, client):
    with client.episode() as episode:
        assert episode.get_action(OBS) == 0
        episode.log_returns(1.0)
        episode.end(OBS)
    with pytest.raises(ConfigError, match="did not end"), client.episode():
        pass
    with pytest.raises(KeyError), client.episode():  # the error of the block is kept
        raise KeyError
    assert [verb for verb, _ in fake.executed].count("end_episode") == 1


def test_the_token_is_sent(over):
    with over(FakeServer(token="secret")) as address:
        with PolicyClient(address, token="secret") as client:
            client.end_episode(client.start_episode(), OBS)
        if over is over_http:
            with PolicyClient(address, token="wrong") as client, pytest.raises(RequestError, match="wrong token"):
                client.start_episode()


@pytest.mark.parametrize(
    "address", ["localhost:9900", "ftp://localhost", "http://", "http://localhost:port", "ws://host/path", "", None]
)
def test_a_malformed_address_is_refused(address):
    raised(ConfigError, PolicyClient, address, says="This is not an address of a policy server")


@pytest.mark.parametrize(
    "given",
    [
        *({"token": "a\nb"}, {"token": ""}, {"timeout": 0}, {"timeout": float("inf")}, {"ca_file": "ca.pem"}),
        *({"explore": False}, {"seed": 1}, {"update_interval": 5.0}, {"episodes_per_message": 2}),  # not if remote
        *({"policy_mapping_fn": {"agent0": "left"}}, {"inference_mode": "far"}),
        *({"inference_mode": "local", **wrong} for wrong in ({"update_interval": "5"}, {"update_interval": -1})),
        *({"inference_mode": "local", **wrong} for wrong in ({"explore": "no"}, {"seed": 1.5})),
    ],
)
def test_malformed_arguments_are_refused(given):
    raised(ConfigError, PolicyClient, "http://localhost:9900", **given)


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_flags_are_booleans(mode):
    client = PolicyClient("http://localhost:9900", mode)
    for call in (
        lambda: client.start_episode(training_enabled="no"),
        lambda: client.end_episode("e", OBS, truncated="no"),
        lambda: client.end_agents("e", {}, truncated=1),
    ):
        raised(RequestError, call, says="not a boolean")


@pytest.mark.parametrize("value", [object(), np.array(["a"]), np.array([object()]), 1j, {object(): 1}])
def test_values_that_cannot_be_encoded_are_refused_before_sending(fake, client, value):
    episode = client.start_episode()
    raised(RequestError, client.get_action, episode, {"a": value}, says="cannot be sent")
    assert "get_action" not in fake.requests
    assert client.get_action(episode, OBS) == 0


def test_requests_that_are_too_large_are_refused_before_sending(fake, client):
    large = np.zeros(MAX_BODY_BYTES, np.uint8)
    columns = {"obs": [large], "actions": [], "rewards": []}
    for send in (
        lambda: client.submit_episodes([{"agents": {"agent0": columns}}]),
        lambda: client.log_action(client.start_episode(), large, 0),
    ):
        refused(413, send, says="larger than the policy server accepts")
    assert [verb for verb, _ in fake.executed] == ["start_episode"]


@pytest.mark.parametrize("over", [over_http], indirect=True)
def test_a_request_is_repeated_if_its_answer_is_incomplete(fake, client):
    episode = client.start_episode()
    fake.faults.append((200, {}, {"Content-Length": "50", "Connection": "close"}))
    assert client.get_action(episode, OBS) == 0
    assert fake.requests.count("get_action") == 2


def test_whole_episodes_of_arrays():
    backend = RecordingBackend({"default_policy": runner()})
    columns: dict[str, Any] = {"obs": observations(3), "actions": np.zeros(2, int), "rewards": np.ones(2)}
    with PolicyServer(backend) as server:
        for scheme in ("http", "ws"):
            with PolicyClient(server.address.replace("http", scheme)) as client:
                for episode in ({"agents": {"agent0": columns}}, Episode(agents={"agent0": Trajectory(**columns)})):
                    assert client.submit_episodes([episode])["accepted"] == 1
    assert len(backend.episodes) == 4
    for episode in backend.episodes:
        np.testing.assert_array_equal(episode.agents["agent0"].obs, columns["obs"])
