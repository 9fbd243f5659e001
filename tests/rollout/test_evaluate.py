"""`RolloutWorker.evaluate`: the exact number of episodes, equal shares of the sub-environments, no side effects."""

from collections import Counter

import numpy as np
import pytest

from rollax import Callbacks, ConfigError, EnvContext, EnvError, RolloutWorker
from rollax.rollout import whole_episodes
from tests.env.refused import refused
from tests.env.worlds import Counting
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, Encode, Line, Scripted


class ShortOrLong(Counting):
    """Episodes of 1 step for reward 1 in sub-environment 0, of 10 steps for reward 10 in all others."""

    observation_space, action_space, paid = OBS_SPACE, ACTION_SPACE, 1.0

    def __init__(self, context: EnvContext) -> None:
        self.length = 1 if context.vector_index == 0 else 10
        self.fail_after = context.get("fail_after", 10**9)

    def step(self, action):
        self.fail_after -= 1
        if self.fail_after < 0:
            raise RuntimeError("out of order")
        return super().step(action)

    def obs(self):
        return np.full(4, self.count, np.float32)


def make(env=ShortOrLong, num_envs=2, **config) -> RolloutWorker:
    return RolloutWorker(env, Encode, config={"num_envs_per_worker": num_envs, "rollout_fragment_length": 5, **config})


@pytest.mark.parametrize(
    ("num_envs", "episodes", "short"), [(1, 3, 3), (2, 1, 1), (2, 5, 3), (2, 8, 4), (4, 3, 1), (3, 7, 3)]
)
def test_the_number_of_episodes_is_exact_with_equal_shares(num_envs, episodes, short):
    result = make(num_envs=num_envs).evaluate(episodes)
    assert len(result) == episodes
    assert sorted(m.reward for m in result) == [1.0] * short + [10.0] * (episodes - short)
    assert [m.length for m in result] == [m.reward for m in result]
    assert [m.env_index == 0 for m in result] == [m.reward == 1 for m in result]


class CallCounter(Callbacks):
    """Counts its calls by sub-environment."""

    def __init__(self):
        self.starts, self.steps, self.ends = Counter(), Counter(), Counter()

    def on_episode_start(self, *, worker, base_env, episode):
        self.starts[episode.env_index] += 1

    def on_episode_step(self, *, worker, base_env, episode):
        self.steps[episode.env_index] += 1

    def on_episode_end(self, *, worker, base_env, episode):
        self.ends[episode.env_index] += 1
        episode.custom_metrics["length"] = episode.length


def test_callbacks_get_only_the_counted_episodes():
    worker = make(num_envs=3, callbacks=CallCounter)
    calls = worker.callbacks
    for _ in range(2):  # sub-environment 2 has no share, and 0 plays nine more episodes during the first one of 1
        calls.__init__()
        result = worker.evaluate(2)
        assert calls.starts == calls.ends == {0: 1, 1: 1}
        assert calls.steps == {0: 1, 1: 10}
        assert [m.custom_metrics["length"] for m in result] == [1, 10]
    worker.sample()
    assert calls.steps[2] > 0


@pytest.mark.parametrize("episodes", [0, -1, 1.5, True, "3", np.float64(2)])
def test_invalid_numbers_of_episodes(episodes):
    with pytest.raises(ConfigError, match=r"evaluate\(num_episodes=...\)\n +got: .*\n +expected: a whole number"):
        make().evaluate(episodes)


@pytest.fixture
def nine_steps_are_long(monkeypatch):
    monkeypatch.setattr(whole_episodes, "_POLLS_BETWEEN_CHECKS", 1)
    monkeypatch.setattr(whole_episodes, "_LONG_EPISODE", 9)


@pytest.mark.usefixtures("nine_steps_are_long")
def test_a_long_episode_warns(caplog):
    worker = make(num_envs=3)
    worker.evaluate(1)  # sub-environments 1 and 2 have no share
    assert not caplog.records
    worker.evaluate(5)
    (record,) = caplog.records
    for part in ("after 9 steps (sub-environment 1)", "An evaluation", "max_episode_steps", "TimeLimit"):
        assert part in record.getMessage()


class Endless(ShortOrLong):
    """Episodes never end in sub-environment 1."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(context)
        self.length = 1 if context.vector_index == 0 else -1


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_an_episode_that_does_not_end_raises(monkeypatch, mode):
    monkeypatch.setattr(whole_episodes, "_POLLS_BETWEEN_CHECKS", 10)
    monkeypatch.setattr(whole_episodes, "_ENDLESS_EPISODE", 30)
    worker = make(Endless, batch_mode=mode)
    assert len(worker.evaluate(1)) == 1  # sub-environment 1 has no share
    refused(EnvError, worker.evaluate, 2, says="sub-environment 1...30 steps...TimeLimit")
    assert len(worker.evaluate(1)) == 1


@pytest.mark.usefixtures("nine_steps_are_long")
@pytest.mark.parametrize(("mode", "warnings"), [("complete_episodes", 1), ("truncate_episodes", 0)])
def test_a_fragment_that_waits_for_the_end_of_an_episode_warns(mode, warnings, caplog):
    worker = make(batch_mode=mode)
    for _ in range(4):
        worker.sample()
    assert [record.getMessage().count("batch_mode='complete_episodes'") for record in caplog.records] == [1] * warnings


def test_multi_agent_with_native_order_of_trajectories():
    script = [{"a": "o", "b": "o"}, {"a": "orT", "b": "or"}, {"b": "orT", ALL: "T"}]
    result = make(lambda c: Scripted([script], c.vector_index), num_envs=3).evaluate(7)
    assert len(result) == 7
    assert all(len(m.policy_rewards["default_policy"]) == 2 for m in result)


class TestSideEffects:
    def test_filters_are_not_changed(self):
        worker = make(observation_filter="MeanStdFilter")
        worker.sample()
        before = worker.get_filters()["default_policy"]
        assert before["count"] > 0
        worker.evaluate(5)
        after = worker.get_filters()["default_policy"]
        assert all(np.array_equal(before[name], after[name]) for name in before)
        worker.sample()
        assert worker.get_filters()["default_policy"]["count"] > before["count"]

    @pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
    def test_sampling_continues_with_fresh_episodes(self, mode):
        worker = make(Line, batch_mode=mode)
        before = worker.sample()
        worker.evaluate(5)
        assert len(worker.get_metrics()) == (before["terminateds"] | before["truncateds"]).sum()
        batch = worker.sample()
        assert len(batch) >= 10
        assert not np.isin(batch["eps_id"], before["eps_id"]).any()
        for episode_id in np.unique(batch["eps_id"]):
            assert batch["t"][batch["eps_id"] == episode_id][0] == 0

    def test_earlier_episodes_are_not_counted(self, monkeypatch):
        worker = make(num_envs=1)
        worker.sample()
        steps, step = [], worker.sampler.step
        monkeypatch.setattr(worker.sampler, "step", lambda: steps.append(step()))
        assert len(worker.evaluate(2)) == len(steps) == 2

    @pytest.mark.parametrize("fail_after", [10**9, 30])
    @pytest.mark.parametrize("play", [RolloutWorker.evaluate, RolloutWorker.write_episodes])
    def test_metrics_of_sampling_are_kept_without_those_of_evaluation(self, play, fail_after, tmp_path):
        output = tmp_path / "written" if play is RolloutWorker.write_episodes else None
        worker = make(num_envs=1, env_config={"fail_after": fail_after}, output=output, callbacks=CallCounter)
        worker.sample()  # 5 episodes of 1 step
        try:
            assert len(play(worker, 40)) == 40
        except EnvError:
            assert fail_after == 30
        assert [m.custom_metrics for m in worker.get_metrics()] == [{"length": 1}] * 5
        assert worker.get_metrics() == []
        worker.stop()

    def test_sampling_records_again_after_an_error(self):
        worker = make(num_envs=1, env_config={"fail_after": 3})
        refused(EnvError, worker.evaluate, 100, says="out of order")
        for env in worker.env.get_sub_environments():
            env.fail_after = 1000
        assert len(worker.sample()) == 5

    def test_fresh_workers_return_the_same_numbers(self):
        results = [make(Line, seed=1).evaluate(6) for _ in range(2)]
        assert results[0] == results[1]
