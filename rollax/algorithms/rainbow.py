"""Rainbow: DQN with all of its extensions.

Source: Hessel et al. (2018), arXiv:1710.02298, with the defaults of its Table 1 for Atari games. Deviations:
those of DQN; the two streams have no hidden layers unless `hiddens` sets some.
"""

from __future__ import annotations

from rollax.algorithms.dqn import DQNConfig, DQNPolicy, DQNTrainer


class RainbowConfig(DQNConfig):
    """The fields of DQN with Rainbow's defaults."""

    defaults = {
        "n_step": 3,
        "num_atoms": 51,
        "noisy": True,
        "prioritized_replay": True,
        "prioritized_replay_alpha": 0.5,
        "lr": 6.25e-5,
        "adam_epsilon": 1.5e-4,
        "learning_starts": 20_000,
        "buffer_size": 1_000_000,
        "target_network_update_freq": 2000,
    }


class RainbowPolicy(DQNPolicy):
    """The policy of DQN with other defaults."""

    config_class = RainbowConfig


class RainbowTrainer(DQNTrainer):
    """DQN with other defaults."""

    name = "Rainbow"
    config_class = RainbowConfig
    policy_class = RainbowPolicy
