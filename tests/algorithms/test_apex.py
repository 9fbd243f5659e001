"""Ape-X: exploration of workers, and settings that are refused."""

import pytest

from rollax import ConfigError, RolloutWorker
from rollax.algorithms.apex import ApexDQN, ApexDQNConfig, ApexDQNTrainer, worker_scale
from rollax.algorithms.dqn import DQN
from rollax.policy.exploration.parameter_noise import epsilon_distance
from tests.algorithms.envs import TwoAgents


def epsilon_of(worker):
    return worker.get_policy().exploration.epsilon(12_345)


class TestExploration:
    @pytest.mark.parametrize(("index", "epsilon"), [(1, 0.4), (2, 0.4**4.5), (3, 0.4**8), (0, 0.4**4.5)])
    def test_each_worker_has_its_own_epsilon(self, index, epsilon):
        # ε^(1 + 7 i/2) for i = 0, 1, 2
        worker = RolloutWorker("CartPole-v1", ApexDQN, config=ApexDQNConfig(seed=0), worker_index=index, num_workers=3)
        assert epsilon_of(worker) == pytest.approx(epsilon)
        worker.stop()

    def test_noisy_networks_have_no_epsilon(self):
        config = ApexDQNConfig(seed=0, noisy=True)
        worker = RolloutWorker("CartPole-v1", ApexDQN, config=config, worker_index=1, num_workers=2)
        assert epsilon_of(worker) == 0.0
        worker.stop()

    def test_epsilon_scales_parameter_noise(self):
        config = ApexDQNConfig(seed=0, exploration="ParameterNoise")
        worker = RolloutWorker("CartPole-v1", ApexDQN, config=config, worker_index=1, num_workers=2)
        assert worker.get_policy().exploration.scale(0) == epsilon_distance(0.4, 2)
        worker.stop()


class TestConfig:
    @pytest.mark.parametrize(
        ("key", "value"),
        [("initial_epsilon", 0.5), ("final_epsilon", 0.1), ("epsilon_timesteps", 9), ("epsilon_schedule", [[0, 0.5]])],
    )
    def test_epsilon_settings_of_dqn_are_refused(self, key, value):
        with pytest.raises(ConfigError, match=f"^{key} has no effect.*set worker_epsilon"):
            ApexDQNConfig(**{key: value})
        assert ApexDQNConfig.from_json(ApexDQNConfig().to_json()) == ApexDQNConfig()

    def test_more_shards_than_workers_are_refused(self):
        with pytest.raises(ConfigError, match="num_replay_shards is larger than num_workers"):
            ApexDQNConfig(num_workers=2, num_replay_shards=4)
        assert ApexDQNConfig(num_workers=4, num_replay_shards=4).num_replay_shards == 4
        assert ApexDQNConfig(num_workers=0, num_replay_shards=4).num_replay_shards == 4


@pytest.mark.long
def test_a_policy_of_another_algorithm_learns_without_initial_priorities():
    small = {
        "learning_starts": 40,
        "timesteps_per_iteration": 100,
        "rollout_fragment_length": 10,
        "buffer_size": 500,
        "train_batch_size": 8,
        "training_intensity": 0.2,
        "updates_per_draw": 2,
        "model": {"fcnet_hiddens": (16,)},
    }
    multiagent = {"policies": {"left": None, "right": DQN}, "policy_mapping_fn": lambda agent: agent}
    with ApexDQNTrainer(TwoAgents, {**small, "multiagent": multiagent}) as trainer:
        trainer.train()
        updates = {name: trainer.get_policy(name).learner.num_updates for name in ("left", "right")}
        assert updates == {"left": 12, "right": 12}
        buffers = trainer.optimizer.shards._live[1].handle.buffers
        assert [name for name, buffer in buffers.items() if "priorities" in buffer.columns] == ["left"]


def test_scales_of_five_workers():
    # 0.5^(1 + 4 i/4), i = 0..4
    found = [worker_scale(0.5, 4.0, index, 5) for index in range(1, 6)]
    assert found == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.03125])


def test_first_and_last_scale_are_those_of_the_paper():
    assert worker_scale(0.4, 7.0, 1, 360) == pytest.approx(0.4)
    assert worker_scale(0.4, 7.0, 360, 360) == pytest.approx(0.4**8)


@pytest.mark.parametrize(("index", "workers"), [(1, 1), (0, 0), (0, 8)])
def test_a_single_worker_and_the_driver_take_the_middle(index, workers):
    assert worker_scale(0.4, 7.0, index, workers) == pytest.approx(0.4**4.5)
