"""TD3: DDPG with twin critics, delayed actor updates, and target policy smoothing.

Source: Fujimoto et al. (2018), arXiv:1802.09477, Algorithm 1; with the defaults of its section 6.1 and of RLlib.
Deviations: see DDPG.
"""

from __future__ import annotations

from rollax.algorithms.ddpg import DDPGConfig, DDPGPolicy, DDPGTrainer


class TD3Config(DDPGConfig):
    """The fields of DDPG with the defaults of TD3."""

    defaults = {
        "train_batch_size": 100,
        "buffer_size": 1_000_000,
        "learning_starts": 10_000,
        "random_steps": 10_000,
        "tau": 5e-3,
        "exploration": "GaussianNoise",
        "twin_q": True,
        "policy_delay": 2,
        "smooth_target_policy": True,
    }


class TD3Policy(DDPGPolicy):
    """The policy of DDPG with other defaults."""

    config_class = TD3Config


class TD3Trainer(DDPGTrainer):
    """DDPG with other defaults."""

    name = "TD3"
    config_class = TD3Config
    policy_class = TD3Policy
