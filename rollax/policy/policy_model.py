"""The actor-critic model of a `JaxPolicy` by its config."""

from __future__ import annotations

from typing import Any

from flax import nnx
from gymnasium import Space

from rollax.config import TrainerConfig
from rollax.config.groups import critic_space_of
from rollax.errors import ConfigError
from rollax.models.catalog import make_model
from rollax.models.distributions.base import ActionDistribution
from rollax.models.distributions.gaussian import DiagGaussian
from rollax.models.embeddings import check_parametric
from rollax.models.networks import with_critic


def make_policy_model(
    observation_space: Space,
    action_space: Space,
    distribution: ActionDistribution,
    config: TrainerConfig,
    rngs: nnx.Rngs,
    where: str,
    *,
    needs_value: bool,
) -> Any:
    """Returns the model of the policy class `where`, with a centralized critic if the config has `centralized_critic`.

    `needs_value`: whether a custom model must return values, if it has no method `critic`.

    Raises ConfigError for `free_log_std` without Gaussian actions, or a centralized critic without a space.
    """
    sizes = config.model
    if sizes.custom_model is None:
        if sizes.free_log_std and not isinstance(distribution, DiagGaussian):
            raise ConfigError(
                "free_log_std requires actions that all have a standard deviation.",
                where="config key 'model.free_log_std'",
                got=action_space,
                expected="a Box action space",
                fix="leave free_log_std out for this action space",
            )
        check_parametric(observation_space, action_space)
    critic_space = critic_space_of(config, where)
    if critic_space is None:
        inputs = distribution.num_inputs
        return make_model(observation_space, action_space, inputs, sizes, rngs, needs_value=needs_value)
    # The actor's own values are not used, so they need no layers.
    actor = sizes.model_copy(update={"vf_share_layers": True})
    model = make_model(observation_space, action_space, distribution.num_inputs, actor, rngs, needs_value=False)
    return with_critic(model, critic_space, sizes, rngs=rngs)
