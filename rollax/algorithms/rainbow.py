"""Rainbow: DQN with all of its extensions.

Source: Hessel et al. (2018), arXiv:1710.02298, with the defaults of its Table 1 for Atari games. Deviations:
those of DQN; the two streams have no hidden layers unless `hiddens` sets some.
"""

from __future__ import annotations

from pydantic import Field

from rollax.algorithms.dqn import DQNConfig, DQNPolicy, DQNTrainer


class RainbowConfig(DQNConfig):
    """The fields of DQN with Rainbow's defaults."""

    n_step: int = Field(default=3, ge=1, description="n, the steps whose rewards stand before the bootstrapped value")
    num_atoms: int = Field(
        default=51, ge=1, description="K, atoms of a distribution of returns; 1 learns its mean alone"
    )
    noisy: bool = Field(default=True, description="whether the streams' layers are noisy; ε is 0 then")
    prioritized_replay: bool = Field(
        default=True, description="whether rows are drawn the more often the larger their last error was"
    )
    prioritized_replay_alpha: float = Field(
        default=0.5, ge=0, description="α of prioritized replay: 0 draws uniformly, 1 in proportion to the errors"
    )
    lr: float = Field(default=6.25e-5, ge=0, description="α, the step size of Adam")
    adam_epsilon: float = Field(default=1.5e-4, gt=0, description="ε of Adam")
    learning_starts: int = Field(default=20_000, ge=0, description="steps before the first update")
    buffer_size: int = Field(default=1_000_000, ge=1, description="rows that are kept to be learned from again")
    target_network_update_freq: int = Field(
        default=2000, ge=1, description="updates after which the target network becomes a copy of the model"
    )


class RainbowPolicy(DQNPolicy):
    """The policy of DQN with other defaults."""

    config_class = RainbowConfig


class RainbowTrainer(DQNTrainer):
    """DQN with other defaults."""

    name = "Rainbow"
    config_class = RainbowConfig
    policy_class = RainbowPolicy
