"""Local inference with lost answers and refused calls: nothing is submitted twice, nothing is lost."""

import threading

import numpy as np
import pytest
from gymnasium import spaces

from rollax import RequestError
from rollax.serving.server import PolicyServer
from tests.env.refused import raised, refused
from tests.serving.served_policies import RecordingBackend, local, runner

X = np.zeros(2, np.float32)
BOTH = {"a": X, "b": X}


def play(client, episode_id):
    episode = client.start_episode(episode_id)
    client.get_action(episode, X)
    client.log_returns(episode, 1.0)
    client.end_episode(episode, X)


class SlowBackend(RecordingBackend):
    """Accepts submissions after an event."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.go = threading.Event()

    def submit(self, episodes):
        assert self.go.wait(60)
        return super().submit(episodes)


def test_a_submission_without_an_answer_is_not_learned_from_twice():
    """The server accepts it after the time limit of the client, which then sends it again."""
    backend = SlowBackend({"default_policy": runner()})
    with PolicyServer(backend) as server, local(server.address, episodes_per_message=2) as client:
        play(client, "1")
        client._calls.timeout, patient = 0.5, client._calls.timeout
        refused(RequestError, play, client, "2", says="did not answer in time")
        client._calls.timeout = patient
        backend.go.set()
        play(client, "3")
        play(client, "4")
        assert client.submitted == {"accepted": 4, "too_old": 0}
    assert [episode.episode_id for episode in backend.episodes] == ["1", "2", "3", "4"]


@pytest.fixture(scope="module")
def two_policies():
    runners = {"a": runner(policy_id="a"), "b": runner(policy_id="b")}
    return RecordingBackend(runners, mapping=lambda agent, _: agent, multi_agent=True)


def test_a_refused_log_action_changes_no_agent(two_policies):
    with PolicyServer(two_policies) as server, local(server.address) as client:
        episode = client.start_episode()
        refused(RequestError, client.log_action, episode, BOTH, {"a": 1, "b": 99}, says="out of bounds...'b'")
        client.log_action(episode, BOTH, {"a": 1, "b": 2})
        client.end_episode(episode, BOTH)
    [sent] = two_policies.episodes
    assert [(agent.actions, agent.t) for agent in sent.agents.values()] == [([1], [0]), ([2], [0])]
    two_policies.episodes.clear()


def test_an_info_of_an_agent_without_a_reward_is_submitted(two_policies):
    with PolicyServer(two_policies) as server, local(server.address) as client:
        episode = client.start_episode()
        client.get_action(episode, BOTH)
        client.log_returns(episode, {"a": 1.0}, {"b": {"key": 1}, "absent": {"key": 2}})
        client.end_episode(episode, BOTH)
    [sent] = two_policies.episodes
    a, b = sent.agents.values()
    assert (list(a.rewards), a.infos, list(b.rewards), b.infos) == ([1.0], None, [0.0], [{"key": 1}])
    two_policies.episodes.clear()


def test_policies_draw_different_random_numbers(two_policies):
    """With equal weights and observations; 1/3 of 60 actions is 20."""
    two_policies.actors["b"].policy.set_weights(two_policies.actors["a"].policy.get_weights())
    with PolicyServer(two_policies) as server, local(server.address) as client:
        episode = client.start_episode()
        actions = [client.get_action(episode, BOTH) for _ in range(60)]
    assert sum(action["a"] == action["b"] for action in actions) < 40


def test_a_client_does_not_act_before_it_has_the_weights_of_all_policies():
    """It would submit an unknown version, and the episodes would be too old."""

    class Failing(RecordingBackend):
        fails = True

        def weights(self, policy_id):
            if policy_id == "b" and self.fails:
                raise RequestError("The weights cannot be read.", status=422)
            return super().weights(policy_id)

    runners = {"a": runner(policy_id="a"), "b": runner(policy_id="b")}
    backend = Failing(runners, mapping=lambda agent, _: agent, multi_agent=True)
    with PolicyServer(backend) as server, local(server.address) as client:
        for _ in range(2):
            raised(RequestError, client.start_episode, says="cannot be read")
        backend.fails = False
        episode = client.start_episode()
        client.get_action(episode, {"a": X})
        client.end_episode(episode, {"a": X})
    assert backend.episodes[0].policy_version == backend.version


def test_a_server_that_restarts_with_another_action_space():
    """The client acts in the new space; it acted with the new weights in the old one."""
    boxes = spaces.Box(-1.0, 1.0, (1,)), spaces.Box(10.0, 20.0, (1,))
    runners = [runner(action_space=box, normalize_actions=True) for box in boxes]
    first, second = (RecordingBackend({"default_policy": one}) for one in runners)
    with PolicyServer(first) as server:
        client = local(server.address, update_interval=0.0, explore=False)
        play(client, "1")
        port = int(server.address.rpartition(":")[2])
    with PolicyServer(second, port=port), client:
        episode = client.start_episode()
        np.testing.assert_allclose(client.get_action(episode, X), runners[1].compute_single_action(X), rtol=1e-6)
        client.end_episode(episode, X)
    assert len(second.episodes) == 1
