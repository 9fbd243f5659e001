"""`League`: opponents, seats, ratings, and its state in checkpoints."""

import math

import gymnasium as gym
import numpy as np
import pytest

from rollax import APPOTrainer, Callbacks, League, MultiAgentEnv, PPOTrainer, Trainer
from rollax.errors import CheckpointError, ConfigError
from rollax.rollout import remote_workers
from rollax.selfplay.league import LEARNER, Opponent, policy_of_seat
from rollax.serving.policy_backend import policy_mapping_of
from tests.algorithms.checkpoints import continue_training, to_plain
from tests.env.refused import refused
from tests.rollout.test_worker_set import workers_here

SEEN: list[dict] = []


class Guess(MultiAgentEnv):
    """Two players choose a bit each, three times in a row; `odd` wins if most of the pairs differ."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    possible_agents = ("odd", "even")

    def __init__(self, env_config):
        pass

    def reset(self, *, seed=None, options=None):
        self.pairs = []
        return dict.fromkeys(("odd", "even"), np.zeros(1, np.float32)), {}

    def step(self, actions):
        self.pairs.append(actions["odd"] != actions["even"])
        over, sign = len(self.pairs) == 3, 1.0 if sum(self.pairs) > 1 else -1.0
        rewards = {"odd": sign * over, "even": -sign * over}
        obs = dict.fromkeys(("odd", "even"), np.full(1, len(self.pairs) / 3, np.float32))
        return obs, rewards, {"__all__": over}, {"__all__": False}, {}


class Small(League):
    size = 2
    self_share = 0.25
    snapshot_score = None
    snapshot_interval = 2


class Watching(Callbacks):
    def on_episode_end(self, *, worker, base_env, episode):
        SEEN.append(dict(episode.policies))


UPDATES = {"train_batch_size": 192, "sgd_minibatch_size": 64, "num_sgd_iter": 1, "model": {"fcnet_hiddens": (4,)}}
CONFIG = {**Small.config(), **UPDATES, "num_envs_per_worker": 8, "observation_filter": "MeanStdFilter", "seed": 3}


def make(**changes):
    return PPOTrainer(Guess, {**CONFIG, **changes})


def test_the_learner_plays_alone_at_first_and_then_in_each_seat_against_one_opponent():
    SEEN.clear()
    with make(callbacks=[Small, Watching]) as trainer:
        first = trainer.train()
        assert all(set(seats.values()) == {LEARNER} for seats in SEEN)
        assert first["league"]["rating"] == League.first_rating
        assert first["league"]["snapshots"] == len(first["league"]["opponents"]) == 1
        running = len(SEEN)
        for _ in range(3):
            trainer.train()
    pairs = [(seats["odd"], seats["even"]) for seats in SEEN[running + 8 :]]  # running episodes go on as they began
    against = [pair for pair in pairs if pair != (LEARNER, LEARNER)]
    share = 1 - len(against) / len(pairs)
    assert 0.15 < share < 0.35
    assert {"past_0", "past_1"} == {policy for pair in against for policy in pair} - {LEARNER}
    assert all(LEARNER in pair for pair in against)
    in_first_seat = sum(pair[0] == LEARNER for pair in against) / len(against)
    assert 0.4 < in_first_seat < 0.6


def test_a_frozen_opponent_has_the_weights_and_the_filter_of_its_time():
    with make() as trainer:
        trainer.train()
        weights = to_plain(trainer.get_weights("past_0")["past_0"])
        filters = to_plain(trainer.worker.get_filters()["past_0"])
        assert weights == to_plain(trainer.get_weights(LEARNER)[LEARNER])
        assert filters == to_plain(trainer.worker.get_filters()[LEARNER])
        trainer.train()
        assert to_plain(trainer.get_weights("past_0")["past_0"]) == weights
        assert to_plain(trainer.worker.get_filters()["past_0"]) == filters
        assert to_plain(trainer.get_weights(LEARNER)[LEARNER]) != weights


def test_the_ratings_are_those_of_the_games():
    league = Small()
    league.opponents = {"past_0": Opponent(1400.0, 1), "past_1": Opponent(1000.0, 2)}
    league.k_factor = 22  # type: ignore[misc]
    league.rate({LEARNER: [1.0], "past_0": [-1.0]})  # expected 1/11: 1000 + 22 · 10/11
    assert (league.rating, league.opponents["past_0"].rating) == pytest.approx((1020, 1380))
    league.rating = 1000.0
    league.rate({LEARNER: [0.0], "past_1": [0.0]})
    assert (league.rating, league.opponents["past_1"].rating) == (1000, 1000)
    league.rate({LEARNER: [-1.0], "past_1": [1.0]})
    assert (league.rating, league.opponents["past_1"].rating) == (989, 1011)
    for unrated in ({LEARNER: [1.0, -1.0]}, {LEARNER: [1.0], "stranger": [-1.0]}, {"past_0": [1.0], "past_1": [-1.0]}):
        league.rate(unrated)
    assert league.rating == 989
    # One win and one loss are added to the scores.
    rates = [league.opponents[name].win_rate for name in ("past_0", "past_1")]
    assert rates == pytest.approx([2 / 3, 1.5 / 4])
    assert league.report()["score"] == pytest.approx(0.5)


def test_the_opponent_that_is_beaten_most_is_replaced():
    with make() as trainer:
        trainer.train()
        league = trainer.worker.callbacks
        league.freeze(trainer)
        league.rate({LEARNER: [1.0], "past_1": [-1.0]})
        before = to_plain(trainer.get_weights("past_0")["past_0"])
        trainer.train()
        league.freeze(trainer)
        assert list(league.opponents) == ["past_0", "past_1"]
        assert [one.since for one in league.opponents.values()] == [1, 2]
        assert to_plain(trainer.get_weights("past_0")["past_0"]) == before
        assert league.snapshots == 3


@pytest.mark.parametrize(
    ("scores", "due"), [([1] * 7, False), ([1] * 6 + [0] * 2, True), ([1, 1, 1, 1, 1, 0, 0, 0], False)]
)
def test_a_snapshot_is_due_by_the_score(scores, due):
    class ByScore(Small):
        snapshot_score, snapshot_interval, games = 0.75, None, 8

    league = ByScore()
    league.opponents = {"past_0": Opponent(1000.0, 1)}
    for score in scores:
        league.rate({LEARNER: [float(score)], "past_0": [0.5]})
    assert league._is_due(100) is due


@pytest.mark.long
@pytest.mark.parametrize("callbacks", [Small, [Watching, Small]], ids=["alone", "with others"])
def test_exact_resume(tmp_path, callbacks):
    with make(callbacks=callbacks) as trainer:
        for _ in range(4):
            league = trainer.train()["league"]
        path = trainer.save(tmp_path, exact=True)
        expected = continue_training(trainer, 3)
    with Trainer.from_checkpoint(path, env=Guess, **{**Small.config(), "callbacks": callbacks}) as fresh:
        (saved,) = [one["state"]["league"] for one in fresh.get_state()["callbacks"] if one["class"] == "Small"]
        assert (saved["rating"], saved["snapshots"]) == (league["rating"], league["snapshots"])
        assert continue_training(fresh, 3) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("size", 0), ("draw", "hardest"), ("self_share", 1.5), ("snapshot_score", 70), ("snapshot_interval", 0)),
        *(("games", 0), ("k_factor", 0)),
        *(("size", 2.5), ("self_share", "a"), ("snapshot_score", "0.7"), ("snapshot_interval", 1.5), ("games", None)),
        *(("k_factor", float("inf")), ("first_rating", float("nan"))),
    ],
)
def test_wrong_settings_are_refused(name, value):
    refused(ConfigError, type("Wrong", (League,), {name: value}).config, says=f"Wrong.{name}")


def test_unknown_settings_are_refused():
    class Own(Small):
        _kept = 1

        @property
        def best(self):
            return max(self.opponents)

        def worst(self):
            return min(self.opponents)

    assert Own.config()["callbacks"] is Own

    class Misspelled(Own):
        siz = 3

    class Below(Misspelled):
        games = 10

    for league in (Misspelled, Below):
        refused(ConfigError, league.config, says="class Misspelled...siz...one of size...rename it to size")


@pytest.mark.long
def test_fewer_opponents_at_a_restore(tmp_path):
    class Smaller(Small):
        size = 1

    with make() as trainer:
        for _ in range(4):
            trainer.train()
        path = trainer.save(tmp_path)
        ratings = trainer.train()["league"]["opponents"].keys()
    assert ratings == {"past_0", "past_1"}
    with Trainer.from_checkpoint(path, env=Guess, **Smaller.config()) as fresh:
        assert fresh.train()["league"]["opponents"].keys() == {"past_0"}


@pytest.mark.long
def test_opponents_may_be_removed():
    with make() as trainer:
        for _ in range(3):
            trainer.train()
        trainer.remove_policy("past_0")
        for _ in range(2):
            opponents = trainer.train()["league"]["opponents"]
        assert {policy_id: one["since"] for policy_id, one in opponents.items()} == {"past_1": 5}
        trainer.remove_policy("past_1")
        assert trainer.train()["league"]["opponents"] == {}


def test_a_damaged_state_is_refused():
    league = Small()
    league.opponents = {"past_0": Opponent(1010.0, 3), "past_1": Opponent(990.0, 5)}
    league.on_save(trainer=None, state=(state := {}))
    for key, value in (
        *(("rating", None), ("rating", math.nan), ("snapshots", -1), ("recent", [2.0]), ("recent", None)),
        *(("order", ["past_0"]), ("order", [["past_0"], "past_1"]), ("opponents", [])),
        *(("opponents", {"past_0": [1010.0, 3], "past_1": [990.0, 5, []]}), ("opponents", {"past_0": None})),
    ):
        with pytest.raises(CheckpointError, match="league"):
            Small().on_restore(trainer=None, state={"league": {**state["league"], key: value}})
    refused(CheckpointError, Small().on_restore, says="league", trainer=None, state={"league": None})


@pytest.mark.long
def test_in_other_processes(small_ray):
    with make(num_workers=2) as trainer:
        for _ in range(3):
            result = trainer.train()
        drawn = trainer.workers.foreach_worker(lambda worker: dict(worker.callbacks._chances))
    assert drawn[0] == drawn[1]
    assert drawn[0].keys() == result["league"]["opponents"].keys() == {"past_0", "past_1"}
    assert result["policy_reward_mean"]["past_0"] is not None


@pytest.mark.long
def test_one_worker_plays_the_games_of_a_run_without_workers(monkeypatch):
    monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
    found = []
    for num_workers in (0, 1):
        with make(num_workers=num_workers) as trainer:
            found.append([trainer.train()["league"] for _ in range(3)])
    assert found[0] == found[1]


@pytest.mark.long
def test_asynchronous_workers_play_against_a_new_opponent_with_its_weights(small_ray):
    settings = {"num_workers": 1, "num_envs_per_worker": 2, "train_batch_size": 20, "rollout_fragment_length": 10}
    with APPOTrainer(Guess, {**Small.config(), **settings, "model": {"fcnet_hiddens": (4,)}}) as trainer:
        trainer.train()
        trainer.worker.callbacks.freeze(trainer)  # the second opponent
        assert trainer.workers.remote.requests_in_flight  # no opponent was replaced
        trainer.workers.remote.request(1, "sample_fragment")
        (there,) = trainer.workers.foreach_worker(lambda worker: to_plain(worker.get_weights()["past_1"]))
        assert there == to_plain(trainer.get_weights("past_1")["past_1"])
        trainer.worker.callbacks.freeze(trainer)  # it replaces one, whose games in pending requests do not count
        assert not trainer.workers.remote.requests_in_flight


class Unknown(Guess):
    possible_agents = None


@pytest.mark.parametrize("env", [Unknown, "CartPole-v1"], ids=["without known agents", "with one agent"])
def test_an_environment_without_several_known_agents_is_refused_in_the_first_iteration(env):
    with PPOTrainer(env, CONFIG) as trainer, pytest.raises(ConfigError, match="possible_agents"):
        trainer.train()


def test_a_server_plays_as_the_learner():
    stored = {"policies": dict.fromkeys([LEARNER, *Small.slots()]), "config": {}}
    mapping, several = policy_mapping_of(stored, "", policy_of_seat, trust_code=False)
    assert several
    assert mapping is not None
    assert mapping("odd", "some episode") == LEARNER
