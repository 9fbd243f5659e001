"""Trainers and workers that sample in a background thread while they learn."""

import threading

import gymnasium as gym
import numpy as np
import pytest

from rollax import PPO, Callbacks, ConfigError, DQNTrainer, ExternalEnv, PPOTrainer, RolloutWorker
from tests.env.refused import refused
from tests.rollout.test_sampling import EncodeAlways
from tests.rollout.worlds import Encode, Line
from tests.waiting import LONG, until


class Echo(ExternalEnv):
    """Plays episodes of ten steps in one thread, without an end."""

    samples_in_background = True

    def __init__(self, env_config):
        super().__init__(gym.spaces.Discrete(4), gym.spaces.Discrete(4))
        self.answered = 0

    def run(self):
        while True:
            episode = self.start_episode()
            for shown in range(10):
                said = self.get_action(episode, shown % 4)
                self.answered += 1
                self.log_returns(episode, float(said == shown % 4))
            self.end_episode(episode, 0)


class NumberFragments(Callbacks):
    """Numbers the fragments of a worker in a column, and counts the episodes that have ended until each."""

    def __init__(self):
        self.ended = []

    def on_sample_end(self, *, worker, samples):
        samples["fragment"] = np.full(samples.count, len(self.ended))
        ends = np.count_nonzero(samples["terminateds"] | samples["truncateds"])
        self.ended.append(sum(self.ended[-1:]) + ends)


def test_evaluations_lose_no_fragment():
    config = {"sample_async": True, "rollout_fragment_length": 7, "train_batch_size": 70, "callbacks": NumberFragments}
    worker = RolloutWorker(lambda context: Line(), EncodeAlways, config=config)
    ended, rollouts = worker.callbacks.ended, []
    for _ in range(5):
        goal = len(ended) + 3
        rollouts += worker.sample_fragments()
        until(lambda goal=goal: len(ended) >= goal)
        assert len(worker.evaluate(2)) == 2
        rollouts += worker.sample_fragments()
    worker.stop()
    numbers = [rollout.batch["default_policy"]["fragment"][0] for rollout in rollouts]
    assert numbers == sorted(set(numbers))
    assert sum(rollout.env_steps + rollout.dropped_steps for rollout in rollouts) == 7 * (numbers[-1] + 1)
    assert sum(len(rollout.episodes) for rollout in rollouts) == ended[numbers[-1]]


CONFIG = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [4]}}


@pytest.fixture(scope="module")
def trainer():
    with PPOTrainer(env=Echo, config={**CONFIG, "observation_filter": "MeanStdFilter", "seed": 0}) as trainer:
        yield trainer


class TestTrainer:
    @pytest.mark.long
    def test_actions_are_answered_while_it_learns(self, trainer, monkeypatch):
        assert trainer.worker.samples_in_background
        trainer.train()
        (env,) = trainer.worker.env.get_sub_environments()
        policy, learn = trainer.get_policy(), trainer.get_policy().learn_on_batch

        def slow(batch):
            goal = env.answered + 100
            until(lambda: env.answered >= goal)
            return learn(batch)

        monkeypatch.setattr(policy, "learn_on_batch", slow)
        trainer.train()
        result = trainer.train()
        assert result["info"]["queue"]["dropped_steps"] >= 40  # meanwhile more than one train batch arrived
        assert result["info"]["queue"]["policy_lag_max"] <= 2

    def test_versions_count_updates_and_are_restored(self, trainer, tmp_path):
        before = trainer.optimizer.version
        trainer.train()
        trainer.train()
        assert trainer.worker.version == trainer.optimizer.version == before + 2
        path = trainer.save(tmp_path)
        trainer.train()
        trainer.restore(path)
        assert trainer.optimizer.version == before + 4  # not that of the weights before the restore
        trainer.train()
        with PPOTrainer(env=Echo, config=trainer.config) as other:
            other.restore(path)
            assert other.optimizer.version == before + 2

    def test_no_exact_save(self, trainer, tmp_path):
        refused(ConfigError, trainer.save, tmp_path, exact=True, says="cannot be saved exactly...sample_async")

    @pytest.mark.parametrize("requested", [RolloutWorker.sample, lambda worker: worker.evaluate(1)])
    def test_filters_can_be_read_after_sampling_on_request(self, trainer, requested):
        requested(trainer.worker)
        reads = threading.Thread(target=trainer.worker.get_filters, daemon=True)
        reads.start()
        reads.join(LONG)
        assert not reads.is_alive()

    def test_evaluation_halts_sampling(self, trainer):
        assert len(trainer.worker.evaluate(2)) == 2
        assert trainer.train()["timesteps_this_iter"] == 40


class Silent(Echo):
    """No client plays."""

    def __init__(self, env_config):
        super().__init__(env_config)
        self.closed = threading.Event()

    def run(self):
        self.closed.wait()

    def close(self):
        self.closed.set()


class Pauses(Silent):
    """A client plays four steps and part of the fifth."""

    def run(self):
        episode = self.start_episode()
        for shown in range(4):
            self.get_action(episode, shown)
        self.get_action(episode, 0)
        self.answered = 5
        self.closed.wait()


@pytest.mark.long
def test_steps_of_an_interrupted_fragment_are_named(caplog):
    worker = RolloutWorker(Pauses, PPO, config=CONFIG)
    (env,) = worker.env.get_sub_environments()
    while env.answered < 5:
        assert worker.sample_fragment() is None
    worker.restart_episodes()
    assert "The running episodes are dropped, with 4 steps that are in no batch yet" in caplog.text
    worker.stop()


@pytest.mark.short("DQNTrainer")
@pytest.mark.parametrize("trainer_class", [PPOTrainer, DQNTrainer])
def test_an_iteration_without_clients_ends_early(trainer_class):
    with trainer_class(env=Silent, config={"model": {"fcnet_hiddens": [4]}}) as trainer:
        threading.Timer(0.1, trainer.stop_waiting).start()
        result = trainer.train()
        assert (result["training_iteration"], result["timesteps_total"]) == (1, 0)
        assert trainer.optimizer.waits
        trainer.stop_waiting()
        assert trainer.train()["timesteps_this_iter"] == 0


class TestConfig:
    def test_off_by_default_for_other_environments(self):
        assert not RolloutWorker(lambda context: Line(), Encode).samples_in_background

    def test_a_policy_must_allow_it(self):
        with pytest.raises(ConfigError, match=r"cannot act while it learns(?s:.)*Encode"):
            RolloutWorker(lambda context: Line(), Encode, config={"sample_async": True})

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"max_policy_lag": 5}, "each fragment is sampled on request"),
            ({"max_policy_lag": None, "sample_async": False}, "each fragment is sampled on request"),
            ({"max_policy_lag": 5, "accept_off_policy_actions": True, "sample_async": True}, "learn from all actions"),
            ({"max_policy_lag": 5, "sample_async": True}, ""),
            ({"max_policy_lag": 2}, ""),
            ({}, ""),
        ],
    )
    def test_a_lag_without_effect_is_named(self, caplog, config, reason):
        RolloutWorker("CartPole-v1", PPO, config={"sgd_minibatch_size": 40, "train_batch_size": 40, **config})
        assert ("max_policy_lag" in caplog.text) == bool(reason)
        assert reason in caplog.text

    @pytest.mark.long
    def test_any_environment_can_be_sampled_in_the_background(self):
        with PPOTrainer(env="CartPole-v1", config={**CONFIG, "sample_async": True}) as trainer:
            assert trainer.train()["timesteps_total"] == 40
            assert np.isfinite(trainer.train()["info"]["learner"]["default_policy"]["total_loss"])
