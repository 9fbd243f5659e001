"""`SyncSamplesOptimizer` with given workers: sampling, learning, counters."""

from dataclasses import replace

import numpy as np
import pytest

from rollax import AsyncSamplesOptimizer, RolloutWorker, SyncSamplesOptimizer
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.config import TrainerConfig
from rollax.errors import ConfigError, PolicyError
from rollax.optimizers.optimizer import WaitEndedError
from rollax.processes.actors import LocalActors
from rollax.processes.failure_rules import FailureRules
from rollax.rollout.metrics import EpisodeList, EpisodeMetrics
from rollax.rollout.remote_workers import RemoteWorkers
from tests.optimizers import stand_ins
from tests.optimizers.stand_ins import STEPS, FragmentWorker, learning, policy_of, pool_of, serving_pool, steps


def make(worker, remote_workers=(), **settings):
    return SyncSamplesOptimizer(worker, remote_workers, settings)


def test_samples_until_the_batch_is_full():
    optimizer = make(FragmentWorker(a=1), train_batch_size=25)
    assert optimizer.step() == {"a": {"rows": 30, "first": 1}}
    assert optimizer.step() == {"a": {"rows": 30, "first": 4}}
    assert (optimizer.env_steps, optimizer.agent_steps, optimizer.steps) == (60, 60, 60)
    timers, queue = optimizer.timings.take()
    assert timers["sample_s"] > 0
    assert timers["learn_s"] > 0
    assert timers["broadcast_s"] == timers["wait_s"] == timers["learner_wait_s"] == 0
    assert queue == {"policy_lag_mean": 0, "policy_lag_max": 0, "queue_depth_mean": None, "dropped_steps": 0}


@pytest.mark.parametrize(("unit", "fragments"), [("env_steps", 3), ("agent_steps", 1)])
def test_counts_env_or_agent_steps(unit, fragments):
    optimizer = make(FragmentWorker(a=1, b=2), train_batch_size=30, count_steps_by=unit)
    assert optimizer.step() == {"a": {"rows": 10 * fragments, "first": 1}, "b": {"rows": 20 * fragments, "first": 1}}
    assert (optimizer.env_steps, optimizer.agent_steps) == (10 * fragments, 30 * fragments)
    assert optimizer.steps == 30


def test_only_trained_policies_with_data_learn():
    worker = FragmentWorker(a=1, b=1, c=1)
    optimizer = make(worker, train_batch_size=10, **learning(worker, "a", "c"))
    assert optimizer.step() == {"a": {"rows": 10, "first": 1}, "c": {"rows": 10, "first": 1}}
    worker.agents["c"] = 0
    assert optimizer.step() == {"a": {"rows": 10, "first": 2}, "c": {"rows": None, "first": None}}


def test_a_policy_that_cannot_learn_raises_a_named_error():
    worker = FragmentWorker(a=1)
    worker.policies["a"].learn_on_batch = super(stand_ins.RecordingPolicy, worker.policies["a"]).learn_on_batch
    with pytest.raises(PolicyError, match=r"not implement learn_on_batch(.|\n)*policies_to_train"):
        make(worker).step()


def test_the_errors_of_rows_are_in_no_result():
    worker = FragmentWorker(a=1)
    worker.policies["a"].learn_on_batch = lambda batch: {"loss": 1.0, "td_error": np.ones(len(batch))}
    assert make(worker).step() == {"a": {"loss": 1.0}}
    worker.policies["a"].learn_on_batch = lambda batch: {"td_error": 0.5}
    assert make(worker).step() == {"a": {"td_error": 0.5}}


def test_kept_episodes_and_lags_are_bounded(monkeypatch):
    monkeypatch.setattr("rollax.optimizers.optimizer.MOST_EPISODES", 5)
    worker = FragmentWorker(a=1)
    optimizer, ended = make(worker, train_batch_size=30), []
    sample = worker.sample_fragment

    def with_an_episode():
        ended.append(EpisodeMetrics(float(len(ended)), 1))
        return replace(sample(), episodes=EpisodeList(ended[-1:]), version=worker.version - len(ended))

    monkeypatch.setattr(worker, "sample_fragment", with_an_episode)
    steps(optimizer, 3)
    assert optimizer.take_episodes() == ended[-5:]
    assert optimizer.take_episodes() == []
    _, queue = optimizer.timings.take()
    assert (queue["policy_lag_mean"], queue["policy_lag_max"]) == (5, 9)  # of 1, 2, ... 9


def test_lags_are_counted_in_updates_also_without_workers_and_without_a_trainer(monkeypatch):
    worker = FragmentWorker()
    optimizer = make(worker, train_batch_size=STEPS)
    sampled = [worker.sample_fragment() for _ in range(3)]  # as a background thread has them before the first update
    monkeypatch.setattr(worker, "sample_fragment", sampled.pop)
    steps(optimizer, 3)
    _, queue = optimizer.timings.take()
    assert (queue["policy_lag_mean"], queue["policy_lag_max"]) == (1, 2)  # of 0, 1, 2


def test_keywords_replace_keys_of_the_config():
    worker = FragmentWorker()
    worker.config = TrainerConfig(seed=3)
    config = SyncSamplesOptimizer(worker, (), train_batch_size=40).config
    assert (config.train_batch_size, config.seed) == (40, 3)
    config = SyncSamplesOptimizer(worker, (), {"train_batch_size": 30, "seed": 4}, train_batch_size=50).config
    assert (config.train_batch_size, config.seed) == (50, 4)
    optimizer = AsyncSamplesOptimizer(worker, (), train_batch_size=500)  # whose keys the config of the worker lacks
    assert (optimizer.config.train_batch_size, optimizer.config.learner_queue_size) == (500, 4)
    optimizer.stop()
    with pytest.raises(ConfigError, match=r"'batch_size'(.|\n)*train_batch_size"):
        SyncSamplesOptimizer(worker, (), batch_size=40)


def test_keys_that_policies_alone_read_are_refused():
    worker = FragmentWorker()
    worker.config = TrainerConfig(seed=3, gamma=0.9)
    message = r"lr has no effect here(.|\n)*SyncSamplesOptimizer\(lr=...\)(.|\n)*0.001, as in(.|\n)*RolloutWorker"
    for given in ({"config": {"lr": 0.5}}, {"lr": 0.5}):
        with pytest.raises(ConfigError, match=message):
            SyncSamplesOptimizer(worker, (), **given)
    with pytest.raises(ConfigError, match=r"model has no effect here"):
        SyncSamplesOptimizer(worker, (), {"model": {"fcnet_hiddens": [7]}})
    worker.config = PPOConfig()
    with pytest.raises(ConfigError, match=r"lambda_ has no effect here(.|\n)*0.95, as in"):
        SyncSamplesOptimizer(worker, (), PPOConfig(), **{"lambda": 0.5})
    worker.config = TrainerConfig(seed=3, gamma=0.9)
    SyncSamplesOptimizer(worker, (), {"gamma": 0.9})  # as the worker has it
    SyncSamplesOptimizer(worker, (), TrainerConfig(lr=0.5))  # a whole config, of a trainer for example


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("explore", False),
        ("rollout_fragment_length", 7),
        ("env_config", {"size": 3}),
        ("output", "data"),
        ("clip_rewards", 1),
    ],
)
def test_keys_that_workers_alone_read_are_refused(key, value):
    worker = FragmentWorker()
    worker.config = TrainerConfig()
    message = rf"{key} has no effect here: workers read it(.|\n)*RolloutWorker\(..., config="
    with pytest.raises(ConfigError, match=message):
        SyncSamplesOptimizer(worker, **{key: value})
    worker.config = TrainerConfig(**{key: value})
    SyncSamplesOptimizer(worker, **{key: value})


@pytest.mark.parametrize("remote", [[FragmentWorker()], ["a"], "a", None])
def test_remote_workers_that_are_no_actors_are_refused(remote):
    with pytest.raises(ConfigError, match=r"remote_workers(.|\n)*RolloutWorker.as_remote\(\)"):
        SyncSamplesOptimizer(FragmentWorker(), remote)


class TestRemote:
    def test_fragments_are_in_the_order_of_rounds_and_workers(self):
        # 20 of 45 steps after one round. 25 are missing: one more round of 20, and one for the last 5.
        orders = set()
        for seed in range(5):
            workers, processes = pool_of(2, seed=seed)
            optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=45)
            for updates in range(2):
                optimizer.step()
                numbers = [1000 * index + 3 * updates + k for k in (1, 2, 3) for index in (1, 2)]
                assert learned(optimizer)[updates] == [(number, updates) for number in numbers]
            assert optimizer.env_steps == 120
            orders.add(tuple(processes.over))
            assert [update.timestep for update in processes.published] == [0, 60]
            assert [update.version for update in processes.published] == [1, 2]
        assert len(orders) > 1

    def test_requests_all_missing_rounds_at_once(self):
        # 20 of 125 steps after one round. 10 fragments are missing: 5 of each worker. Then 5 steps: one more of each.
        workers, processes = pool_of(2, seed=0)
        requested = []
        call = processes.call
        processes.call = lambda *arguments: (requested.append(len(processes.over)), call(*arguments))[1]
        make(FragmentWorker(), remote_workers=workers, train_batch_size=125).step()
        assert requested == [0] * 2 + [2] * 10 + [12] * 2

    def test_a_failed_worker_gets_its_request_again(self):
        workers, processes = pool_of(2, seed=0, fails={(1, 2): ValueError("no oil")})
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=40)
        optimizer.step()
        assert learned(optimizer) == [[(1001, 0), (2001, 0), (1101, 0), (2002, 0)]]
        assert (optimizer.env_steps, workers.failures.restarts) == (40, 1)
        assert len(processes.workers) == 3
        optimizer.step()
        assert learned(optimizer)[1] == [(1102, 1), (2003, 1), (1103, 1), (2004, 1)]

    def test_other_workers_replace_a_failed_one_without_restarts(self):
        rules = FailureRules(ignore=True)
        workers, _ = pool_of(2, rules, seed=0, fails={(1, 2): ValueError("no oil")})
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=40)
        optimizer.step()
        assert learned(optimizer) == [[(1001, 0), (2001, 0), (2002, 0), (2003, 0)]]
        optimizer.step()
        assert learned(optimizer)[1] == [(2004 + k, 1) for k in range(4)]

    def test_requests_of_an_interrupted_step_are_used_in_the_next(self, monkeypatch):
        def interrupted():
            raise KeyboardInterrupt

        workers, _ = pool_of(2)
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=20)
        with monkeypatch.context() as patch:
            patch.setattr(workers, "collect", interrupted)
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
        optimizer.step()
        assert learned(optimizer) == [[(1001, 0), (2001, 0), (1002, 0), (2002, 0)]]
        assert optimizer.env_steps == 40


class TestServing:
    def test_a_worker_without_clients_blocks_no_other(self):
        workers, processes = serving_pool(2, 1)
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=30)
        steps(optimizer, 2)
        assert learned(optimizer) == [[(2001, 0), (2002, 0), (2003, 0)], [(2004, 1), (2005, 1), (2006, 1)]]
        processes.workers[0].idle = False
        optimizer.step()
        assert {number // 1000 for number, _ in learned(optimizer)[2]} == {1, 2}
        assert optimizer.env_steps == 90

    def test_an_idle_worker_is_sent_new_weights(self):
        workers, processes = serving_pool(2, 1)
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=10)
        steps(optimizer, 3)
        assert processes.workers[0].version in (2, 3)  # depends on whether it was requested after the last broadcast

    def test_a_step_ends_instead_of_waiting(self):
        workers, processes = serving_pool(2, 1, 2)
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=30)
        optimizer.waits = False
        with pytest.raises(WaitEndedError):
            optimizer.step()
        optimizer.waits, processes.workers[1].idle = True, False
        optimizer.step()
        assert learned(optimizer) == [[(2001, 0), (2002, 0), (2003, 0)]]

    def test_late_fragments_are_dropped_and_counted(self):
        workers, _ = serving_pool(2)
        local = FragmentWorker()
        local.is_too_old = lambda version: local.version > version
        optimizer = make(local, remote_workers=workers, train_batch_size=10)
        optimizer.step()  # requests from both; 2001 is in flight
        optimizer.step()
        assert learned(optimizer) == [[(1001, 0)], [(1002, 1)]]
        assert optimizer.env_steps == 20
        assert optimizer.timings.take()[1]["dropped_steps"] == 10

    def test_steps_wait_for_workers_with_environments(self):
        workers, _ = pool_of(2)
        optimizer = make(FragmentWorker(), remote_workers=workers, train_batch_size=20)
        optimizer.waits = False
        optimizer.step()
        assert learned(optimizer) == [[(1001, 0), (2001, 0)]]


def learned(optimizer):
    return policy_of(optimizer).learned


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_workers_take_over_a_filter_that_was_set(count):
    settings = {"rollout_fragment_length": 5, "train_batch_size": 5, "observation_filter": "MeanStdFilter"}
    config = PPOConfig(**settings, sgd_minibatch_size=5, num_sgd_iter=1, model={"fcnet_hiddens": (2,)}, seed=0)
    common = {"config": config, "num_workers": count}
    local = RolloutWorker("CartPole-v1", PPO, samples=False, **common)
    workers = {i: RolloutWorker("CartPole-v1", PPO, worker_index=i, **common) for i in range(1, count + 1)}
    pool = RemoteWorkers(LocalActors(lambda index, restarts: workers[index]), count)
    optimizer = SyncSamplesOptimizer(local, pool)
    optimizer.step()
    late = workers[1].rollout()  # sampled before the filter is set, and received after it
    state = {"count": np.array(1e6), "mean": np.full(4, 7.0), "squares": np.full(4, 1e6)}
    local.set_filters({"default_policy": state})
    optimizer._sampled(late)
    assert local.get_filters()["default_policy"]["count"] == 1e6
    optimizer.step()
    after = local.get_filters()["default_policy"]
    assert 5 * count <= after["count"] - 1e6 <= 6 * count  # a new observation for each step, and for each reset
    np.testing.assert_allclose(after["mean"], 7, atol=0.01)
