"""The model that a `JaxPolicy` is made with: what its config asks for, or a message saying why that cannot be."""

from __future__ import annotations

from typing import Any

from flax import nnx
from gymnasium import Space

from rollax.config import TrainerConfig
from rollax.errors import ConfigError
from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.distributions import ActionDistribution, DiagGaussian
from rollax.models.networks import with_critic
from rollax.models.parametric import check_parametric

_NOT_IN_OWN_NETWORKS = ("use_lstm", "use_gru", "free_log_std")


def make_policy_model(
    observation_space: Space,
    action_space: Space,
    distribution: ActionDistribution,
    config: TrainerConfig,
    rngs: nnx.Rngs,
    where: str,
) -> Any:
    """The model; where the config asks for a critic that sees all agents, with that one beside the actor.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        distribution: of its actions.
        config: `model` is read, and `centralized_critic` and `critic_space` where it has them.
        rngs: where the weights are drawn from.
        where: the policy's class, for messages.
    Raises:
        ConfigError: a free deviation of actions that have none, or a centralized critic without a space.
        SpaceError: observations that describe their actions, in another form than those of a parametric model.
    """
    sizes = config.model
    if sizes.custom_model is None:
        if sizes.free_log_std and not isinstance(distribution, DiagGaussian):
            raise _no_log_std(action_space)
        check_parametric(observation_space, action_space)
    if not sees_all_agents(config):
        return make_model(observation_space, action_space, distribution.num_inputs, sizes, rngs)
    critic_space = getattr(config, "critic_space", None)
    if critic_space is None:
        raise _no_critic_space(where)
    # The actor's own values are never asked for, so they need no layers.
    actor = sizes.model_copy(update={"vf_share_layers": True})
    model = make_model(observation_space, action_space, distribution.num_inputs, actor, rngs)
    return with_critic(model, critic_space, sizes, rngs=rngs)


def sees_all_agents(config: TrainerConfig) -> bool:
    """Whether the config asks for a centralized critic."""
    return getattr(config, "centralized_critic", False)


def check_layers(config: ModelConfig, policy_class: str) -> None:
    """For policies whose model is not an actor and critic of states: they have networks of their own.

    Raises:
        ConfigError: the config asks for what those networks have not.
    """
    for name in _NOT_IN_OWN_NETWORKS:
        if getattr(config, name):
            raise ConfigError(
                "A setting of the actor-critic model, for an algorithm with other networks.",
                where=f"config key 'model.{name}', for {policy_class}",
                got=getattr(config, name),
                expected="the sizes of the default layers (fcnet_hiddens, fcnet_activation, conv_filters, ...), or a "
                "custom_model",
                fix=f"leave {name} out, or use PPO",
            )


def _no_critic_space(policy_class: str) -> ConfigError:
    return ConfigError(
        "A centralized critic for a policy that is made on its own.",
        where=f"config key 'critic_space', for {policy_class}",
        got=None,
        expected="the space of what the critic sees",
        fix="let a trainer or a RolloutWorker make the policy: it knows all agents and their spaces",
    )


def _no_log_std(action_space: Space) -> ConfigError:
    return ConfigError(
        "free_log_std for actions that have no standard deviation, or not only.",
        where="config key 'model.free_log_std'",
        got=action_space,
        expected="a Box action space",
        fix="leave free_log_std out for this action space",
    )
