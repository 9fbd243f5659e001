"""Learning in the environments of JAX libraries, each only where its library is installed.

gymnax excludes the newest Gymnasium, jaxmarl the newest JAX, and MuJoCo Playground requires NVIDIA Warp.
"""

from typing import Any

import pytest

from rollax import PPOTrainer, PQNTrainer
from tests.learning_curves import Run, each_run

pytestmark = pytest.mark.learning

STEPS = 10_000_000
# Gallici et al. (2024), table of MinAtar.
PQN_BREAKOUT: dict[str, Any] = {
    "num_envs_per_worker": 128,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 2,
    "lr_schedule": [[0, 5e-4], [STEPS, 0.0]],
    "epsilon_timesteps": STEPS // 10,
    "lambda": 0.65,
    "model": {
        "conv_filters": [[16, 3, 1]],
        "conv_dense": 128,
        "normalization": "layer",
        "normalize_before_activation": True,
    },
}
# PureJaxRL's `ppo.py` (Lu et al. 2022), but with the convolution of PQN's paper, a lower learning rate and a larger
# weight of the entropy: with 0.01 the ball circles around the last of the 30 bricks, and scores stay at 29 up to 7M.
# Evaluations draw actions, as the published training episodes do: the environment is deterministic, so the ball of a
# greedy policy can circle for ever.
PPO_BREAKOUT: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 8192,
    "sgd_minibatch_size": 1024,
    "num_sgd_iter": 4,
    "lr_schedule": [[0, 2e-3], [STEPS, 0.0]],
    "clip_param": 0.2,
    "lambda": 0.95,
    "entropy_coeff": 0.03,
    "grad_clip": 0.5,
    "model": {"conv_filters": [[16, 3, 1]], "conv_dense": 128, "vf_share_layers": True},
    "evaluation_config": {"explore": True},
}
# As IPPO of jaxmarl (baselines/IPPO), in which all agents share a policy, but with fewer and larger batches.
SIMPLE_SPREAD: dict[str, Any] = {
    "num_envs_per_worker": 32,
    "count_steps_by": "env_steps",
    "train_batch_size": 3200,
    "sgd_minibatch_size": 2400,
    "num_sgd_iter": 4,
    "lr_schedule": [[0, 2e-3], [1_000_000, 1e-4]],
    "clip_param": 0.3,
    "lambda": 0.95,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": [128, 128]},
    "evaluation_config": {"num_envs_per_worker": 32},
    "evaluation_num_episodes": 256,
}
# As Playground's own PPO (mujoco_playground/config/dm_control_suite_params.py), but with fewer sub-environments.
CARTPOLE_BALANCE: dict[str, Any] = {
    "num_envs_per_worker": 64,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 512,
    "num_sgd_iter": 8,
    "lr_schedule": [[0, 1e-3], [2_000_000, 0.0]],  # with a constant one the score falls again
    "gamma": 0.995,
    "lambda": 0.95,
    "grad_clip": 1.0,
    "observation_filter": "MeanStdFilter",
    "model": {"fcnet_hiddens": [64, 64], "free_log_std": True},
    "evaluation_config": {"num_envs_per_worker": 20},
}

RUNS = {
    "pqn_minatar_breakout": Run(PQNTrainer, "jax:gymnax/Breakout-MinAtar", 60, STEPS, PQN_BREAKOUT),
    "ppo_minatar_breakout": Run(PPOTrainer, "jax:gymnax/Breakout-MinAtar", 60, STEPS, PPO_BREAKOUT),
    "ppo_simple_spread": Run(PPOTrainer, "jax:jaxmarl/MPE_simple_spread_v3", -60, 1_000_000, SIMPLE_SPREAD),
    "ppo_cartpole_balance": Run(PPOTrainer, "jax:playground/CartpoleBalance", 900, 2_000_000, CARTPOLE_BALANCE),
}
PACKAGES = {"gymnax": "gymnax", "jaxmarl": "jaxmarl", "playground": "mujoco_playground"}


@each_run(RUNS)
def test_learns(run, reaches):
    pytest.importorskip(PACKAGES[run.env.removeprefix("jax:").partition("/")[0]])
    reaches(*run)
