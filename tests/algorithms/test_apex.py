"""Ape-X: exploration of workers, and settings that are refused; parameter noise of DDPG."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, RolloutWorker
from rollax.algorithms.apex import ApexDDPG, ApexDDPGConfig, ApexDQN, ApexDQNConfig, ApexDQNTrainer, worker_scale
from rollax.algorithms.ddpg import DDPG
from rollax.algorithms.dqn import DQN
from rollax.batch import Fragment
from rollax.policy.exploration.parameter_noise import action_distance, epsilon_distance
from tests.algorithms.envs import TwoAgents

SMALL = {"model": {"fcnet_hiddens": (16,)}, "seed": 0}


def exploration_of(index, policy_class=ApexDQN, config_class=ApexDQNConfig, env="CartPole-v1", **config):
    """The exploration of one of three workers."""
    config = config_class(**SMALL, **config)
    worker = RolloutWorker(env, policy_class, config=config, worker_index=index, num_workers=3)
    worker.stop()
    return worker.get_policy().exploration


class TestExploration:
    @pytest.mark.parametrize(("index", "epsilon"), [(1, 0.4), (2, 0.4**4.5), (3, 0.4**8), (0, 0.4**4.5)])
    def test_each_worker_has_its_own_epsilon(self, index, epsilon):
        # ε^(1 + 7 i/2) for i = 0, 1, 2
        assert exploration_of(index).epsilon(12_345) == pytest.approx(epsilon)

    def test_noisy_networks_have_no_epsilon(self):
        assert exploration_of(1, noisy=True).epsilon(12_345) == 0.0

    def test_epsilon_scales_parameter_noise(self):
        assert exploration_of(1, exploration="ParameterNoise").scale(0) == epsilon_distance(0.4, 2)

    @pytest.mark.parametrize("exploration", ["GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"])
    @pytest.mark.parametrize(("index", "part"), [(1, 0.4), (2, 0.4**4.5), (3, 0.4**8)])
    def test_each_worker_of_ddpg_has_its_own_scale(self, exploration, index, part):
        # ε^(1 + 7 i/2) for i = 0, 1, 2, of a noise_scale that rises from 0 to 2
        settings = {"noise_scale_schedule": [(0, 0.0), (100, 2.0)], "exploration": exploration}
        noise = exploration_of(index, ApexDDPG, ApexDDPGConfig, "Pendulum-v1", **settings)
        if exploration != "ParameterNoise":
            noise = noise.inner  # within the random first steps
        assert noise.scale(50) == pytest.approx(part)
        assert noise.scale(200) == pytest.approx(2 * part)


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
    small = {"learning_starts": 40, "timesteps_per_iteration": 100, "rollout_fragment_length": 10, "buffer_size": 500}
    small |= {"train_batch_size": 8, "training_intensity": 0.2, "updates_per_draw": 2, **SMALL}
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


@pytest.mark.parametrize(("index", "workers"), [(1, 1), (0, 0), (0, 8)])
def test_a_single_worker_and_the_driver_take_the_middle(index, workers):
    assert worker_scale(0.4, 7.0, index, workers) == pytest.approx(0.4**4.5)


def test_parameter_noise_has_the_scale_of_action_noise():
    config = {**SMALL, "exploration": "ParameterNoise", "noise_scale": 0.2, "random_steps": 0, "parameter_noise": 0.01}
    policy = DDPG.make_policy(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), config)
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    fragment = {"obs": obs, "trajectory_id": np.zeros(200), "truncateds": np.zeros(200, bool)}
    for _ in range(200):
        acted = policy.compute_actions(obs)[0]
        policy.postprocess_rows(Fragment({**fragment, "terminateds": np.zeros(200, bool)}, np.array([199]), {}))
    greedy = policy.compute_actions(obs, explore=False)[0]
    # σ moves by four hundredths at a time, and so does the distance, as long as actions are not near their bounds.
    assert action_distance(greedy, acted) == pytest.approx(0.2, rel=0.1)
