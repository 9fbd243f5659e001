"""PG, PPO, DQN and SAC in PyTorch reach the scores of JAX with as many samples; `make learning` runs these."""

import pytest

from examples.torch_dqn import TorchDQNTrainer
from examples.torch_pg import TorchPGTrainer
from examples.torch_ppo import TorchPPOTrainer
from examples.torch_sac import TorchSACTrainer
from rollax import PGTrainer, PPOTrainer
from tests.algorithms.test_replay_learning import ZOO_CARTPOLE

pytestmark = pytest.mark.learning

PPO = {
    "num_envs_per_worker": 8,
    "train_batch_size": 1024,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 20,
    "lr": 1e-3,
    "gamma": 0.98,
    "lambda": 0.8,
}
PG = {"num_envs_per_worker": 8}


@pytest.mark.parametrize("trainer_class", [PPOTrainer, TorchPPOTrainer])
def test_ppo_cartpole_as_in_the_example(reaches, trainer_class):
    reaches(trainer_class, "CartPole-v1", 475, 100_000, PPO)


def test_torch_dqn_cartpole(reaches):
    config = {name: value for name, value in ZOO_CARTPOLE.items() if name != "dueling"}
    reaches(TorchDQNTrainer, "CartPole-v1", 475, 50_000, config)


def test_torch_sac_pendulum(reaches):
    reaches(TorchSACTrainer, "Pendulum-v1", -200, 10_000, {"lr": 1e-3, "learning_starts": 500, "random_steps": 500})


@pytest.mark.parametrize("trainer_class", [PGTrainer, TorchPGTrainer])
def test_pg_cartpole_as_in_the_example(reaches, trainer_class):
    reaches(trainer_class, "CartPole-v1", 475, 200_000, PG)
