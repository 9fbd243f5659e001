"""The config keys `frame_stack` and `action_repeat` in whole runs."""

import pytest

from examples.multi_agent_cartpole import MultiAgentCartPole
from rollax import ARSTrainer, ConfigError, DQNTrainer, PolicyError, PPOTrainer, load_policy

KEYS = {"frame_stack": 3, "action_repeat": 2, "num_envs_per_worker": 3, "seed": 0}
PPO = {**KEYS, "train_batch_size": 96, "sgd_minibatch_size": 32, "num_sgd_iter": 1}
DQN = {**KEYS, "learning_starts": 30, "timesteps_per_iteration": 60, "train_batch_size": 8}


@pytest.mark.short("PPOTrainer-CartPole-v1-config0-1")
@pytest.mark.parametrize(
    ("trainer_class", "env", "config", "poles"),
    [
        (PPOTrainer, "CartPole-v1", PPO, 1),
        pytest.param(PPOTrainer, "jax:CartPole-v1", PPO, 1, marks=pytest.mark.long),
        (PPOTrainer, MultiAgentCartPole, {**PPO, "env_config": {"num_agents": 2}}, 2),
        (DQNTrainer, "CartPole-v1", DQN, 1),
        pytest.param(ARSTrainer, "CartPole-v1", {**KEYS, "num_directions": 2}, 1, marks=pytest.mark.long),
    ],
)
def test_training_evaluation_and_loading(trainer_class, env, config, poles, tmp_path):
    with trainer_class(env, config) as trainer:
        trainer.train()
        found = trainer.evaluate(num_episodes=3)
        path = trainer.save(tmp_path)
    (name, *_) = trainer.worker.policies
    assert load_policy(path, policy_id=name).policy.observation_space.shape == (12,)
    # Each of two steps pays 1 for each pole that stands; the last pole may fall in the first one.
    steps = found["episode_len_mean"]
    assert 2 * steps - 2 < found["episode_reward_mean"] <= 2 * poles * steps


def test_spaces_of_the_config_are_those_of_policies():
    with PPOTrainer("CartPole-v1") as trainer:
        space = trainer.get_policy().observation_space
    with pytest.raises(PolicyError, match="not the environment's"):
        PPOTrainer("CartPole-v1", {**PPO, "observation_space": space})


@pytest.mark.parametrize("key", ["frame_stack", "action_repeat"])
def test_evaluation_takes_the_same_steps(key):
    with pytest.raises(ConfigError, match=f"{key} has no effect here"):
        PPOTrainer("CartPole-v1", {**PPO, "evaluation_config": {key: 1}})


@pytest.mark.long
def test_workers_have_the_spaces_of_the_driver(small_ray):
    with PPOTrainer("CartPole-v1", {**PPO, "num_workers": 1}) as trainer:
        assert trainer.train()["timesteps_total"] >= 96
