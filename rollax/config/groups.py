"""Groups of fields that several algorithms share: state values, minibatches, rewards, exploration.

Groups about replay are in `replay_groups.py`, groups of algorithms that learn off-policy in `off_policy_groups.py`.

The documentation shows the descriptions of the fields. An algorithm declares the fields that it alone has; for another
default of an inherited field it has an entry in `defaults` (see `FieldGroup`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from gymnasium.spaces import Space
from pydantic import ConfigDict, Field

from rollax.config.field_group import FieldGroup
from rollax.config.field_types import Lambda, SchedulePoints
from rollax.config.hooks import ConfigHooks
from rollax.config.trainer import TrainerConfig
from rollax.errors import ConfigError
from rollax.models.config import MOST_LAYERS, Width

OWN_NETWORKS = {("model.vf_share_layers", "model.free_log_std"): "this algorithm has networks of its own"}


class CentralizedCriticFields(FieldGroup):
    """Whether the value function sees all agents; see `CentralCritic`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    requires = {"critic_space": {"centralized_critic": True}}
    places = {("centralized_critic", "critic_space"): ("policy",)}

    centralized_critic: bool = Field(
        default=False,
        description="whether the value function takes the observations of all agents and the actions of the others; "
        "the agents still act on their own observations",
    )
    critic_space: Space | None = Field(
        default=None, description="space of the input of a centralized critic; None: derived from the environment"
    )


def critic_space_of(config: TrainerConfig, policy_class: str) -> Space | None:
    """The space of a centralized critic's observations, None without such a critic; ConfigError if it is unset."""
    if not getattr(config, "centralized_critic", False):
        return None
    space = getattr(config, "critic_space", None)
    if space is None:
        raise ConfigError(
            "A policy with a centralized critic is created without the space of the critic.",
            "config key 'critic_space'",
            policy_class,
        ).expected("the space of the critic's observations", "let a trainer or a RolloutWorker create the policy")
    return space


class ValueLossFields(FieldGroup):
    """The weight of the loss of a state-value critic, which may share layers with the actor."""

    places = {"vf_loss_coeff": ("policy",)}

    vf_loss_coeff: float = Field(default=0.5, ge=0, description="c_v, weight of the value loss")


class LambdaFields(FieldGroup):
    """The λ of returns that mix sampled rewards and values."""

    places = {"lambda_": ("policy",)}

    lambda_: Lambda = 1.0


class StateValueFields(LambdaFields, ValueLossFields):
    """The loss of an actor and a critic of states: policy loss + c_v · value loss - c_e · entropy."""

    places = {("entropy_coeff", "entropy_coeff_schedule"): ("policy",)}

    entropy_coeff: float = Field(default=0.01, ge=0, description="c_e, weight of the entropy bonus")
    entropy_coeff_schedule: SchedulePoints | None = Field(
        default=None, description="[[timestep, c_e], ...], linear in between; replaces entropy_coeff"
    )


class NormalizedRewardFields(FieldGroup):
    """Whether an on-policy algorithm learns from normalized rewards."""

    places = {"normalize_rewards": ("policy",)}

    normalize_rewards: bool = Field(
        default=False,
        description="whether rewards are divided by the running standard deviation of their discounted sum, and then "
        "clipped to [-10, 10], before learning; results report the rewards of the environment",
    )


class StateDependentExplorationFields(FieldGroup):
    """Exploration that is a smooth function of the observation; see `StateDependentExploration`."""

    requires = {
        "use_sde": {"model.custom_model": None, "model.free_log_std": False},
        ("sde_sample_freq", "sde_log_std_init"): {"use_sde": True},
    }
    places = {("use_sde", "sde_sample_freq", "sde_log_std_init"): ("policy",)}

    use_sde: bool = Field(
        default=False,
        description="whether the noise of continuous actions is a random function of the observation (gSDE), which is "
        "kept for several steps",
    )
    sde_sample_freq: int | None = Field(
        default=None, ge=1, le=2**24, description="steps until a new function is drawn; None: one for each trajectory"
    )
    sde_log_std_init: float = Field(
        default=-2.0, description="initial log σ of the noise for each hidden feature and action element"
    )


class ExplorationBonusFields(ConfigHooks):
    """Bonuses for observations that are new; see `ExplorationBonus`."""

    requires = {("bonus_coeff", "bonus_hiddens", "predictor_share"): {"exploration_bonus": "rnd"}}
    places = {("exploration_bonus", "bonus_coeff", "bonus_hiddens", "predictor_share"): ("policy",)}

    exploration_bonus: Literal["rnd"] | None = Field(
        default=None,
        description="rnd: random network distillation, bonuses for next observations whose features a network cannot "
        "predict yet; None: no bonuses",
    )
    bonus_coeff: float = Field(
        default=0.5,
        ge=0,
        description="weight of bonuses, which are divided by the running standard deviation of their discounted sums",
    )
    bonus_hiddens: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MOST_LAYERS)] = Field(
        default=(128, 64),
        description="widths of the hidden layers and of the output of the random network; the predictor has two more "
        "hidden layers",
    )
    predictor_share: float = Field(
        default=0.25, gt=0, le=1, description="share of the rows of a batch that the predictor learns from"
    )

    def check(self) -> None:
        super().check()
        key = "bonus_gamma" if "bonus_gamma" in type(self).model_fields else "gamma"
        if self.exploration_bonus is not None and getattr(self, key) == 1:
            raise ConfigError(
                "Sums of bonuses go on after the end of an episode, and without a discount they grow forever, so that "
                "bonuses, which are divided by their deviation, vanish.",
                where=f"config key '{key}' ({type(self).__name__}), with exploration_bonus",
                got=getattr(self, key),
                expected="less than 1",
                fix=f"set {key} to 0.99 or 0.999, or leave exploration_bonus out",
            )


class BonusAdvantageFields(ExplorationBonusFields):
    """Bonuses for observations that are new, with a value function of their own; see `BonusAdvantages`."""

    requires = {"bonus_gamma": {"exploration_bonus": "rnd"}}
    places = {"bonus_gamma": ("policy",)}

    bonus_gamma: float = Field(
        default=0.99, ge=0, le=1, description="γ of bonuses, whose sums do not end with the episode"
    )


class MinibatchFields(TrainerConfig):
    """Several epochs of minibatches over each train batch."""

    places = {("sgd_minibatch_size", "num_sgd_iter"): ("policy",)}

    sgd_minibatch_size: int = Field(default=64, ge=1, description="M, rows of one gradient step")
    num_sgd_iter: int = Field(default=10, ge=1, description="K, epochs over each train batch")

    def check(self) -> None:
        super().check()
        self.refuse_larger("sgd_minibatch_size", "train_batch_size")
