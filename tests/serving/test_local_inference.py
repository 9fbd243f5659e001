"""Clients that act with the served weights have the server's actions, and submit episodes that it can learn from."""

import math

import numpy as np
import pytest
from gymnasium import spaces

from rollax import DQN, IMPALA, PPO, PQN, EpisodeLostError, PolicyClient, RequestError
from rollax.serving.acting import AgentMemory
from rollax.serving.limits import Limits
from rollax.serving.local_episodes import LocalActor
from rollax.serving.server import PolicyServer
from tests.env.refused import raised
from tests.serving.served_policies import CONTINUOUS, DISCRETE, LSTM, RecordingBackend, local, runner
from tests.waiting import in_threads

RNG = np.random.default_rng(0)
SEEN = RNG.normal(3.0, 2.0, (12, 2)).astype(np.float32)


@pytest.fixture(scope="module", params=["ppo", "lstm", "dqn", "impala"])
def backend(request):
    if request.param == "dqn":
        return RecordingBackend({"default_policy": runner(DQN)})
    model = {"model": LSTM} if request.param == "lstm" else {}
    algorithm = IMPALA if request.param == "impala" else PPO
    policy = runner(algorithm, CONTINUOUS, normalize_actions=True, **model)
    return RecordingBackend({"default_policy": policy})


@pytest.fixture
def address(backend):
    backend.episodes.clear()
    with PolicyServer(backend) as server:
        yield server.address


def play(client, rewards=(1.0, 2.0, 3.0)):
    """One episode of the observations `SEEN`; returns its actions."""
    episode = client.start_episode()
    actions = []
    for obs, reward in zip(SEEN, rewards, strict=False):
        actions.append(client.get_action(episode, obs))
        client.log_returns(episode, reward)
    client.end_episode(episode, SEEN[len(rewards)])
    return np.array(actions)


class TestOneAgent:
    @pytest.mark.short(every=3)
    def test_actions_equal_the_servers(self, address):
        with local(address, explore=False) as near, PolicyClient(address.replace("http", "ws")) as far:
            np.testing.assert_allclose(play(near), play(far), rtol=1e-5)
            np.testing.assert_allclose(play(near), play(far), rtol=1e-5)

    @pytest.mark.short("dqn")
    def test_episodes_are_submitted_with_all_columns_for_learning(self, backend, address):
        with local(address) as client:
            actions = play(client)
            assert client.submitted == {"accepted": 1, "too_old": 0}
            assert client.version == backend.version
        [episode] = backend.episodes
        assert (episode.policy_version, episode.training_enabled) == (backend.version, True)
        [(agent, sent)] = episode.agents.items()
        assert agent == "agent0"
        np.testing.assert_array_equal(sent.obs, SEEN[:4])
        np.testing.assert_allclose(sent.actions, actions, rtol=1e-6)
        assert list(sent.rewards) == [1.0, 2.0, 3.0]
        assert (sent.terminated, sent.truncated, sent.t, sent.infos) == (True, False, [0, 1, 2], None)

    @pytest.mark.short(every=3)
    def test_log_probabilities_are_those_of_the_sent_actions(self, backend, address):
        """Normalized actions far from 0 are clipped: the log-probabilities are those of the clipped ones."""
        with local(address) as client:
            play(client)
        [trajectory] = backend.episodes[0].agents.values()
        actor = backend.actors["default_policy"]
        if "DQN" in actor.policy.made_by.__name__:
            assert trajectory.action_logp is None
            return
        if actor.recurrent:
            assert np.isfinite(trajectory.action_logp).all()
            return
        seen = actor.runner.filter(np.asarray(trajectory.obs[:-1]), update=False)
        _, _, fetches = actor.runner.act(seen, True, 0, {})
        taken = actor.runner.action_map.to_policy(np.asarray(trajectory.actions))
        expected = actor.policy.fetches_of(taken, fetches)["action_logp"]
        np.testing.assert_allclose(trajectory.action_logp, expected, rtol=1e-4)


@pytest.fixture(scope="module")
def discrete():
    return RecordingBackend({"default_policy": runner()})


@pytest.fixture
def server(discrete):
    discrete.episodes.clear()
    discrete.sent.clear()
    with PolicyServer(discrete) as server:
        yield server


def test_several_episodes_in_one_message_and_the_rest_at_the_end(discrete, server):
    with local(server.address, episodes_per_message=2) as client:
        for _ in range(3):
            play(client)
        assert len(discrete.episodes) == 2
    assert len(discrete.episodes) == 3
    assert len({episode.episode_id for episode in discrete.episodes}) == 3


def test_greedy_actions_have_no_probabilities(discrete, server):
    """So an on-policy algorithm refuses them."""
    for explore in (True, False):
        with local(server.address, explore=explore) as client:
            play(client)
        assert (discrete.episodes[-1].agents["agent0"].action_logp is not None) == explore


def test_exploring_actions_of_values_have_probabilities():
    """PQN learns on-policy, so its server refuses actions without them. By default ε is 1 at first."""
    actor = LocalActor(runner(PQN, DISCRETE), explore=True, largest=None)
    sent = actor.act([AgentMemory(actor) for _ in SEEN], list(SEEN), [None] * len(SEEN))
    assert [logp for _, logp in sent] == pytest.approx([-math.log(3)] * len(SEEN))


def test_a_player_can_write_into_its_action(address, backend):
    """The chosen action is submitted."""
    with local(address) as client:
        episode = client.start_episode()
        action = client.get_action(episode, SEEN[0])
        chosen = np.array(action)
        if isinstance(action, np.ndarray):
            action[...] = 0.0
        client.log_returns(episode, 1.0)
        client.end_episode(episode, SEEN[1])
    [sent] = backend.episodes[0].agents.values()
    np.testing.assert_array_equal(sent.actions[0], chosen)


def test_many_episodes_act_together(server):
    with local(server.address, explore=False) as client:
        ids = [client.start_episode() for _ in range(5)]
        together = client.get_actions(dict(zip(ids, SEEN, strict=False)))
        alone = [client.get_action(client.start_episode(), obs) for obs in SEEN[:5]]
        assert [together[episode_id] for episode_id in ids] == alone
        assert client.get_actions({}) == {}


def test_newer_weights_are_fetched_after_a_submission(discrete, server):
    with local(server.address, update_interval=1e6) as client:
        play(client)
        play(client)
        assert (discrete.sent, client.version) == (["default_policy"], discrete.version)
        running = client.start_episode()
        client.get_action(running, SEEN[0])
        discrete.renew(runner(seed=2))
        play(client)  # the answer has the new version
        play(client)
        assert (len(discrete.sent), client.version) == (2, discrete.version)
        client.get_action(running, SEEN[0])
        client.end_episode(running, SEEN[0], truncated=True)
    versions = [episode.policy_version for episode in discrete.episodes]
    # The last episode has acted with both versions: its version is the older one.
    assert versions == [discrete.version - 1] * 3 + [discrete.version, discrete.version - 1]


def test_newer_weights_are_fetched_after_the_interval(discrete, server):
    with local(server.address, update_interval=0.0, explore=False) as client:
        client.start_episode()
        client.start_episode()
        assert len(discrete.sent) <= 1  # the second time they have not changed
        other = runner(seed=5)
        discrete.renew(other)
        episode = client.start_episode()
        assert client.version == discrete.version
        expected = [other.compute_single_action(obs) for obs in SEEN]
        assert [client.get_action(episode, obs) for obs in SEEN] == expected


def test_logged_actions_have_no_probability(discrete, server):
    with local(server.address) as client:
        episode = client.start_episode(training_enabled=False)
        client.get_action(episode, SEEN[0])
        client.log_returns(episode, 1.0, {"key": 1})
        client.log_returns(episode, 1.5)
        client.log_action(episode, SEEN[1], 2)
        client.end_episode(episode, SEEN[2], truncated=True)
    [episode] = discrete.episodes
    [sent] = episode.agents.values()
    assert (sent.action_logp, sent.truncated, sent.terminated, episode.training_enabled) == (None, True, False, False)
    assert (sent.actions[1], list(sent.rewards), sent.infos) == (2, [2.5, 0.0], [{"key": 1}, {}])


def test_threads_share_a_client(discrete, server):
    with local(server.address) as client:
        in_threads(4, lambda _: [play(client) for _ in range(5)])
    assert len(discrete.episodes) == 20


def test_a_refused_submission_is_an_error_with_the_text_of_the_server(discrete):
    with PolicyServer(discrete, limits=Limits(largest_number=10.0)) as server, local(server.address) as client:
        raised(RequestError, play, client, says="rewards[1]", rewards=(1.0, 100.0))
        play(client)


@pytest.fixture(scope="module")
def two_policies():
    runners = {"left": runner(policy_id="left"), "right": runner(policy_id="right", action_space=CONTINUOUS)}
    return RecordingBackend(runners, mapping=lambda agent, _: agent.rstrip("0123456789"), multi_agent=True)


def test_several_agents_and_policies(two_policies):
    with PolicyServer(two_policies) as server, local(server.address, policy_mapping_fn=lambda who: who[:-1]) as client:
        episode = client.start_episode()
        first = client.get_action(episode, {"left1": SEEN[0], "right1": SEEN[1]})
        assert type(first["left1"]) is int
        assert first["right1"].shape == (2,)
        client.log_returns(episode, {"left1": 1.0, "right1": -1.0})
        client.get_action(episode, {"right1": SEEN[2]})
        client.log_returns(episode, {"right1": -2.0, "left1": 0.5}, {"left1": {"key": 3}})
        client.end_agents(episode, {"left1": None})
        raised(RequestError, client.get_action, episode, {"left1": SEEN[3]}, says="again after its end")
        raised(RequestError, client.get_action, episode, {"middle1": SEEN[3]}, says="policy_mapping_fn")
        raised(RequestError, client.get_action, episode, SEEN[3], says="not by agent")
        client.log_action(episode, {"right1": SEEN[3]}, {"right1": CONTINUOUS.low})
        client.end_episode(episode, {"right1": SEEN[4]}, truncated=True)
    [sent] = two_policies.episodes
    left, right = sent.agents["left1"], sent.agents["right1"]
    assert (left.policy_id, right.policy_id) == ("left", "right")
    assert (left.terminated, left.truncated, right.terminated, right.truncated) == (True, False, False, True)
    assert (list(left.rewards), list(right.rewards)) == ([1.5], [-1.0, -2.0, 0.0])
    assert (left.t, right.t, left.infos) == ([0], [0, 1, 2], [{"key": 3}])
    np.testing.assert_array_equal(left.obs, SEEN[[0, 0]])
    np.testing.assert_array_equal(right.obs, SEEN[[1, 2, 3, 4]])
    assert len(left.action_logp) == 1
    assert right.action_logp is None


def test_masked_actions_and_nested_observations():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": spaces.Box(-1.0, 1.0, (2,))})
    backend = RecordingBackend({"default_policy": runner(observation_space=space)})
    seen = {"x": np.zeros(2, np.float32), "action_mask": np.array([0, 1, 0], np.int8)}
    with PolicyServer(backend) as server, local(server.address) as client:
        episode = client.start_episode()
        assert [client.get_action(episode, seen) for _ in range(10)] == [1] * 10
        client.end_episode(episode, seen)
    [sent] = backend.episodes[0].agents.values()
    assert np.asarray(sent.obs["action_mask"]).shape == (11, 3)


def test_wrong_calls_are_refused_at_once_and_change_nothing(discrete, server):
    """Otherwise the server would refuse the whole episode at its end."""

    def refused(says, call, *arguments):
        with pytest.raises(RequestError, match=says):
            call(*arguments)

    with local(server.address) as client:
        refused("The server does not accept this id", client.start_episode, 5)
        client.start_episode("e")
        refused("The episode is already running", client.start_episode, "e")
        client.log_returns("e", 0.0)
        refused("that has not acted", client.log_returns, "e", 1.0)
        refused("unknown", client.get_action, "nobody", SEEN[0])
        refused("not finite", client.get_action, "e", [np.nan, 0.0])
        refused(r"wrong shape(.|\n)*observation of 'e'", client.get_action, "e", [0.0])
        client.get_action("e", SEEN[0])
        for action in (3, "1", [1]):
            refused("action of", client.log_action, "e", SEEN[1], action)
        for info in ([1], {"a": object()}):
            refused("The info", client.log_returns, "e", 1.0, info)
        for reward, says in ((np.nan, "NaN"), (np.inf, "too large"), (1e39, "too large"), ("1", "not a number")):
            refused(rf"The reward is {says}(.|\n)*where: +reward of", client.log_returns, "e", reward)
        client.log_returns("e", np.float32(0.5), {"a": np.arange(2), "b": float("nan")})
        refused("None", client.end_episode, "e", None)
        refused("wrong shape", client.end_episode, "e", np.zeros(3))
        client.end_episode("e", SEEN[1])
        raised(EpisodeLostError, client.end_episode, "e", SEEN[1])
        refused("without an action", client.end_episode, client.start_episode(), SEEN[0])
    [episode] = discrete.episodes
    sent = episode.agents["agent0"]
    assert (list(sent.rewards), sent.infos) == ([0.5], [{"a": [0, 1], "b": None}])


def test_other_episodes_of_a_refused_message_are_submitted(discrete, server):
    with local(server.address, episodes_per_message=3) as client:
        play(client)
        inference = client._inference
        inference._finished[0].agents["agent0"].infos = [{"a": 1}]  # for one of three steps
        play(client)
        with pytest.raises(RequestError) as caught:
            play(client)
    assert len(discrete.episodes) == 2
    assert "is lost" in caught.value.__notes__[0]


def test_episodes_are_kept_until_they_arrive(discrete):
    with PolicyServer(discrete) as server:
        client = local(server.address)
        play(client)
        port = int(server.address.rpartition(":")[2])
    before = len(discrete.episodes)
    episode = client.start_episode()
    client.get_action(episode, SEEN[0])
    client._calls.timeout, patient = 0.5, client._calls.timeout
    raised(RequestError, client.end_episode, episode, SEEN[1], says="could not be reached")
    client._calls.timeout = patient
    again = RecordingBackend({"default_policy": discrete.actors["default_policy"].runner})
    with PolicyServer(again, port=port), client:
        client.close()
    assert (before, len(again.episodes)) == (len(discrete.episodes), 1)
