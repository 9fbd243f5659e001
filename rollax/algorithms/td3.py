"""TD3: DDPG with twin critics, delayed actor updates, and target policy smoothing.

Source: Fujimoto et al. (2018), arXiv:1802.09477, Algorithm 1; with the defaults of its section 6.1 and of RLlib.
Deviations: see DDPG.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollax.algorithms.ddpg import DDPGConfig, DDPGPolicy, DDPGTrainer


class TD3Config(DDPGConfig):
    """The fields of DDPG with the defaults of TD3."""

    train_batch_size: int = Field(default=100, ge=1, description="rows of one update")
    buffer_size: int = Field(default=1_000_000, ge=1, description="rows that are kept to be learned from again")
    learning_starts: int = Field(default=10_000, ge=0, description="steps before the first update")
    random_steps: int = Field(default=10_000, ge=0, description="steps at first whose actions are uniformly random")
    tau: float = Field(
        default=5e-3, gt=0, le=1, description="τ, the part of the way that targets go towards what they follow"
    )
    exploration: Literal["GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"] = Field(
        default="GaussianNoise",
        description="the noise that is added to actions; or perturbed parameters, whose actions are as far from the "
        "others as noise_scale says",
    )
    twin_q: bool = Field(default=True, description="whether there are two critics, of which targets take the lower")
    policy_delay: int = Field(
        default=2, ge=1, description="d, updates of the critics for each one of the actor and the targets"
    )
    smooth_target_policy: bool = Field(default=True, description="whether the actions of targets are noisy")


class TD3Policy(DDPGPolicy):
    """The policy of DDPG with other defaults."""

    config_class = TD3Config


class TD3Trainer(DDPGTrainer):
    """DDPG with other defaults."""

    name = "TD3"
    config_class = TD3Config
    policy_class = TD3Policy
