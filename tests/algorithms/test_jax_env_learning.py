"""Learning in JAX environments: the same scores and settings as for the same tasks in Gymnasium.

Those that Gymnasium has too are evaluated there.
"""

import pytest
from gymnasium import spaces

from examples import stateless_cartpole
from rollax import ARSTrainer, DQNTrainer, FlashSACTrainer, JaxEnv, PPOTrainer, PQNTrainer, SACTrainer, TimeLimit
from rollax.env.jax.classic_control import CartPole
from tests.algorithms.test_on_policy_learning import CARTPOLE, PENDULUM, PQN_CARTPOLE
from tests.algorithms.test_replay_learning import FLASH_SAC_PENDULUM, MOUNTAIN_CAR, SAC_PENDULUM, ZOO_CARTPOLE
from tests.learning_curves import Run, each_run, settings_of
from tests.search.test_search_learning import CARTPOLE as ARS_CARTPOLE

pytestmark = pytest.mark.learning


class WithoutVelocities(JaxEnv):
    """CartPole with the cart's position and the pole's angle as observation."""

    def __init__(self):
        self.env = CartPole()
        space = self.env.observation_space
        self.observation_space = spaces.Box(space.low[::2], space.high[::2])
        self.action_space = self.env.action_space

    def reset(self, key):
        state, obs = self.env.reset(key)
        return state, obs[::2]

    def step(self, state, action, key):
        outcome = self.env.step(state, action, key)
        return outcome._replace(obs=outcome.obs[::2])


def jax_stateless_cartpole(context):
    return TimeLimit(WithoutVelocities(), 500)


BRAX = {
    "env_config": {"backend": "spring"},
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 8,
    "lr": 1e-3,
    "gamma": 0.97,
    "lambda": 0.95,
    "observation_filter": "MeanStdFilter",
    "model": {"free_log_std": True},
}


PQN_STATELESS = {
    **PQN_CARTPOLE,
    "lr_schedule": [[0, 1e-3], [500_000, 0.0]],
    "final_epsilon": 0.05,
    "epsilon_timesteps": 50_000,
    "observation_filter": "MeanStdFilter",
    "model": {
        "use_gru": True,
        "lstm_cell_size": 64,
        "max_seq_len": 32,
        "fcnet_hiddens": [64],
        "fcnet_activation": "relu",
        "normalization": "layer",
        "normalize_before_activation": True,
    },
}


def there_too(trainer_class, env, target, budget, config):
    """A run in an environment in JAX, with evaluations in Gymnasium's."""
    return Run(trainer_class, f"jax:{env}", target, budget, {**config, "evaluation_config": {"env": env}})


RUNS = {
    "ppo_jax_cartpole": there_too(PPOTrainer, "CartPole-v1", 475, 100_000, CARTPOLE),
    "ppo_jax_stateless_cartpole": Run(PPOTrainer, jax_stateless_cartpole, 450, 120_000, stateless_cartpole.CONFIG),
    "ppo_jax_pendulum": there_too(
        PPOTrainer, "Pendulum-v1", -250, 300_000, {**PENDULUM, "observation_filter": "MeanStdFilter"}
    ),
    "ppo_jax_acrobot": there_too(PPOTrainer, "Acrobot-v1", -100, 300_000, settings_of("Acrobot-v1", "PPO")),
    "pqn_jax_cartpole": there_too(PQNTrainer, "CartPole-v1", 475, 500_000, PQN_CARTPOLE),
    "pqn_jax_stateless_cartpole": Run(PQNTrainer, jax_stateless_cartpole, 350, 500_000, PQN_STATELESS),
    "dqn_jax_cartpole": there_too(DQNTrainer, "CartPole-v1", 475, 100_000, ZOO_CARTPOLE),
    "sac_jax_pendulum": there_too(SACTrainer, "Pendulum-v1", -200, 10_000, SAC_PENDULUM),
    "flash_sac_jax_pendulum": there_too(FlashSACTrainer, "Pendulum-v1", -200, 10_000, FLASH_SAC_PENDULUM),
    "sac_jax_mountain_car_continuous": there_too(
        SACTrainer, MOUNTAIN_CAR, 90, 50_000, settings_of(MOUNTAIN_CAR, "SAC")
    ),
    "ars_jax_cartpole": Run(ARSTrainer, "jax:CartPole-v1", 500, 50_000, ARS_CARTPOLE),
}


@each_run(RUNS)
def test_reaches_its_score(reaches, run):
    reaches(*run)


@pytest.mark.filterwarnings("ignore")  # brax warns that it is no longer maintained
def test_ppo_brax_inverted_pendulum(reaches):
    reaches(PPOTrainer, "jax:brax/inverted_pendulum", 950, 1_500_000, BRAX)
