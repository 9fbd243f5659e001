"""Sub-environments in this process that raise are recreated if the config allows it."""

import numpy as np
import pytest

from rollax import ConfigError, EnvError, RolloutWorker, SpaceError, TrainerConfig, VectorEnv, to_base_env
from rollax.env.restarting import EnvFailures
from rollax.env.rows import Rows
from tests.env.always_zero import AlwaysZero
from tests.env.external.worlds import ExternalClocks
from tests.env.refused import refused
from tests.env.remote.fragile import DIE, END, GO_ON, RAISE, Fragile, FragileParty, act
from tests.env.worlds import ArrayVector, Clock, DictParties

BOTH = pytest.mark.parametrize("cls", [Fragile, FragileParty])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(EnvFailures, "FIRST_PAUSE_S", 0.0)


@BOTH
def test_a_raising_one_is_recreated_and_the_others_continue(make, cls, remote, event_log, caplog):
    env = make(cls, remote=remote, restart=True)
    rows = act(env, env.reset_rows(np.arange(3), [7, 8, 9]))
    assert not len(rows.dropped_envs)
    rows = act(env, rows, {1: RAISE, 2: END})
    assert rows.dropped_envs.tolist() == [1]
    assert rows.ended_envs.tolist() == [2]
    assert {*rows.env_index.tolist()} == {0, 2}
    assert {int(obs[1]) for obs in rows.obs} == {0, 2}
    rows = act(env, Rows.concat(rows, env.reset_rows(np.array([2, 1]))))
    counts = dict(zip(rows.env_index.tolist(), (int(obs[0]) for obs in rows.obs), strict=True))
    assert counts == {0: 3, 1: 1, 2: 1}
    assert not len(rows.dropped_envs)
    assert [event_log.count("made", index) for index in range(3)] == [1, 2, 1]
    assert event_log.count("closed", 1) == 1
    assert "Sub-environment 1 failed" in caplog.text
    assert 'raise ValueError("a door fell off")' in caplog.text


@BOTH
def test_all_can_fail_at_once(make, cls):
    env = make(cls, restart=True)
    rows = act(env, env.reset_rows(np.arange(3)), dict.fromkeys(range(3), RAISE))
    assert len(rows) == 0
    assert rows.dropped_envs.tolist() == [0, 1, 2]
    rows = act(env, env.reset_rows(rows.dropped_envs))
    assert {*rows.env_index.tolist()} == {0, 1, 2}


@BOTH
def test_the_dict_view_reports_a_lost_episode_as_truncated_without_an_agent(make, cls):
    env = make(cls, 2, restart=True)
    agents = list(env.try_reset()[0][0])
    env.send_actions({0: dict.fromkeys(agents, RAISE), 1: dict.fromkeys(agents, GO_ON)})
    obs, _, terminateds, truncateds, _, _ = env.poll()
    assert (obs[0], terminateds[0], truncateds[0]) == ({}, {"__all__": False}, {"__all__": True})
    assert [flags[1]["__all__"] for flags in (terminateds, truncateds)] == [False, False]
    env.try_reset(0)
    env.send_actions({index: dict.fromkeys(agents, GO_ON) for index in range(2)})
    assert set(env.poll()[0]) == {0, 1}


@BOTH
def test_a_lost_episode_must_be_reset(make, cls, remote):
    env = make(cls, remote=remote, restart=True)
    rows = act(env, env.reset_rows(np.arange(3)), {1: RAISE})
    refused(EnvError, act, env, rows, says="an episode that is over or has not begun")


@BOTH
def test_without_the_config_key_the_error_is_raised(make, cls):
    env = make(cls)
    rows = env.reset_rows(np.arange(3))
    caught = refused(EnvError, act, env, rows, {1: RAISE}, says="ValueError in step...sub-environment 1")
    assert isinstance(caught.__cause__, ValueError)


@BOTH
def test_a_failed_reset_or_creator_is_repeated(make, cls, event_log):
    rows = make(cls, 1, restart=True, config={"bad_resets": 2, "bad_makes": 1}).reset_rows(np.arange(1), [5])
    assert rows.obs[0][0] == 0
    assert event_log.count("made") == 4  # the first, one that raised, and one after each bad reset
    assert event_log.count("reset", 0, 5) == 3


@BOTH
def test_a_recreated_one_has_its_own_reproducible_seeds(make, cls, remote, event_log):
    def after_a_failure():
        env = make(cls, 1, remote=remote, restart=True)
        rows = env.reset_rows(np.arange(1), [7])
        started = env.reset_rows(act(env, rows, {0: DIE if remote else RAISE}).dropped_envs)
        return rows.obs[0][2], started.obs[0][2]

    first, again = after_a_failure(), after_a_failure()
    assert first == again
    assert first[0] != first[1]
    assert event_log.count("reset", 0, None) == 0


@BOTH
def test_the_number_of_failures_in_a_row_is_limited(make, cls, remote, event_log, monkeypatch):
    """The end of an episode, or many steps, reset the count."""
    monkeypatch.setattr(EnvFailures, "MOST_IN_A_ROW", 2)
    monkeypatch.setattr(EnvFailures, "STEPS_TO_GET_WELL", 10)
    env = make(cls, 2, remote=remote, restart=True)
    rows = env.reset_rows(np.arange(2))

    def play(*actions):
        nonlocal rows
        for action in actions:
            polled = act(env, rows, {1: action})
            over = np.concatenate((polled.ended_envs, polled.dropped_envs))
            rows = Rows.concat(polled, env.reset_rows(over)) if len(over) else polled

    play(RAISE, RAISE, END, RAISE, RAISE, *[GO_ON] * 10, RAISE, *[GO_ON] * 9, RAISE)
    caught = refused(EnvError, play, RAISE, says="failed 3 times in a row...ValueError in step")
    assert "a door fell off" in str(caught.__cause__.__cause__)
    assert event_log.count("made", 0) == 1


def test_pauses_become_longer(monkeypatch):
    monkeypatch.setattr(EnvFailures, "FIRST_PAUSE_S", 0.1)
    failures, error = EnvFailures(restart_failed=True), EnvError("it failed")
    assert [failures.failed(1, error) for _ in range(5)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8])
    refused(EnvError, failures.failed, 1, error, says="6 times")
    assert failures.failed(2, error) == 0


def test_a_recreated_one_must_have_the_same_spaces(make, monkeypatch):
    class Changing(Fragile):
        def __init__(self, context):
            super().__init__(context)
            if self.event_log.count("made") > 2:
                self.observation_space = Clock.action_space

    monkeypatch.setattr(EnvFailures, "MOST_IN_A_ROW", 2)
    env = make(Changing, 2, restart=True)
    rows = act(env, env.reset_rows(np.arange(2)), {0: RAISE})
    caught = refused(EnvError, env.reset_rows, rows.dropped_envs, says="failed 3 times")
    assert isinstance(caught.__cause__.__cause__, SpaceError)


@pytest.mark.parametrize("env", [ArrayVector(2), ExternalClocks(1), DictParties(2)], ids=lambda env: type(env).__name__)
def test_kinds_with_their_own_sub_environments_warn(env, caplog):
    to_base_env(env, restart_failed_sub_environments=True)
    assert f"{type(env).__name__} has its own sub-environments" in caplog.text


def test_a_vector_env_can_report_lost_sub_environments():
    class Losing(VectorEnv):
        """Returns nothing for its first sub-environment."""

        def __init__(self):
            clock = Clock()
            super().__init__(clock.observation_space, clock.action_space, 2)

        def reset_at(self, index, seed=None, options=None):
            return np.zeros(3, np.float32), {}

        def vector_step(self, actions):
            self.lost = [0]
            return [np.ones(3, np.float32)], [2.0], [False], [False], [{}]

    env = to_base_env(Losing())
    rows = act(env, env.reset_rows(np.arange(2)))
    assert rows.dropped_envs.tolist() == [0]
    assert rows.env_index.tolist() == [1]
    assert rows.rewards.tolist() == [2]


def sampling_unlucky(cls, event_log, **settings):
    """A worker with environments whose episodes last 4 steps, or are lost in their second."""

    class Unlucky(cls):
        def step(self, actions):
            self.steps = getattr(self, "steps", 0) + 1
            action = RAISE if self.steps == 6 else END if self.steps % 4 == 0 else GO_ON
            return super().step(action if cls is Fragile else dict.fromkeys(actions, action))

    config = {"env_config": {"event_log": event_log}, "restart_failed_sub_environments": True, **settings}
    return RolloutWorker(Unlucky, AlwaysZero, config={**config, "num_envs_per_worker": 3, "seed": 0})


@BOTH
def test_workers_continue_sampling(cls, event_log):
    worker = sampling_unlucky(cls, event_log, rollout_fragment_length=20, batch_mode="complete_episodes")
    lengths = np.unique(worker.sample()["eps_id"], return_counts=True)[1]
    assert {*lengths.tolist()} == {4 if cls is Fragile else 8}
    assert {episode.length for episode in worker.get_metrics()} == {4}
    assert event_log.count("made") > 6
    worker.stop()


@BOTH
def test_steps_of_lost_episodes_are_not_counted(cls, event_log):
    worker = sampling_unlucky(cls, event_log, rollout_fragment_length=6)
    for _ in range(5):
        batch = worker.sample()
        assert batch.env_steps == len(batch) / (1 if cls is Fragile else 2) == 18
    assert event_log.count("made") > 6
    worker.stop()


def test_keys_of_the_config():
    refused(ConfigError, TrainerConfig, remote_env_batch_wait_ms=-1, says="remote_env_batch_wait_ms")
    refused(ConfigError, TrainerConfig, remote_env_timeout_s=0, says="remote_env_timeout_s")
    refused(ConfigError, TrainerConfig, remote_worker_envs="yes please", says="remote_worker_envs")
