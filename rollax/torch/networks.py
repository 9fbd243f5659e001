"""The default models in PyTorch: `ActorCritic`, with and without memory, `QNetwork`, and an actor with critics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rollax.core import trees
from rollax.core.spaces import ACTION_MASK, EMBEDDINGS, is_parametric
from rollax.errors import ConfigError, SpaceError
from rollax.models.action_embeddings import check_parametric, embedding_size
from rollax.models.config import ModelConfig
from rollax.models.distributions.factory import check_box
from rollax.models.features import POLICY_GAIN, VALUE_GAIN, number_of_agents
from rollax.models.outputs import Outputs
from rollax.policy.size_checks import check_layers
from rollax.torch.batch_norm import in_evaluation, with_running_statistics
from rollax.torch.encoder import Encoder
from rollax.torch.layers import GRU, LSTM, dense, make_mlp

_WIDTH = 64


class Trunk(nn.Module):
    """Hidden features of raw observation columns: `Encoder`, then `fcnet_hiddens` unless all inputs are images."""

    def __init__(self, observation_space: spaces.Space, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, config)
        hiddens = () if self.encoder.images_only else config.fcnet_hiddens
        self.mlp = make_mlp(self.encoder.features, hiddens, config)
        self.features = self.mlp.features

    def forward(self, obs: Any) -> Tensor:
        return self.mlp(self.encoder(obs))


class ParametricHead(nn.Module):
    """Logits of parametric actions, from their embeddings, as in `rollax.models.parametric_head.ParametricHead`."""

    def __init__(self, features: int, embeddings: int, *, gain: float) -> None:
        super().__init__()
        self.intent = dense(features, _WIDTH, gain=gain)
        self.key = dense(embeddings, _WIDTH, gain=1.0)

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        keys = torch.tanh(self.key(embeddings.to(torch.float32)))
        return torch.einsum("bk,bsk->bs", self.intent(hidden), keys) / math.sqrt(_WIDTH)


def make_policy_head(observation_space: spaces.Space, features: int, num_outputs: int, *, gain: float) -> nn.Module:
    """A `ParametricHead` if observations contain embeddings of the actions, otherwise a dense layer."""
    if is_parametric(observation_space):
        return ParametricHead(features, embedding_size(observation_space), gain=gain)
    return dense(features, num_outputs, gain=gain)


def policy_outputs(head: nn.Module, hidden: Tensor, obs: Any) -> Tensor:
    """[B, num_outputs] the head's outputs."""
    return head(hidden, obs[EMBEDDINGS]) if isinstance(head, ParametricHead) else head(hidden)


class ActorCritic(nn.Module):
    """Inputs of the action distribution and state values, as in `rollax.models.networks.ActorCritic`."""

    def __init__(
        self,
        observation_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        head_features: int | None = None,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        outputs = num_outputs // 2 if config.free_log_std else num_outputs
        self.policy_trunk = Trunk(observation_space, config)
        self.value_trunk = None if config.vf_share_layers else Trunk(observation_space, config)
        features = self.policy_trunk.features if head_features is None else head_features
        self.policy_head = make_policy_head(observation_space, features, outputs, gain=POLICY_GAIN)
        self.value_shape = value_shape
        self.value_head = dense(features, math.prod(value_shape), gain=VALUE_GAIN)
        self.log_std = nn.Parameter(torch.full((outputs,), config.log_std_init)) if config.free_log_std else None

    def forward(self, obs: Any) -> Outputs:
        hidden = self.policy_trunk(obs)
        return self.heads(hidden, hidden if self.value_trunk is None else self.value_trunk(obs), obs)

    def heads(self, hidden: Tensor, value_hidden: Tensor, obs: Any) -> Outputs:
        """The model's outputs from the hidden features of actor and critic."""
        outputs = policy_outputs(self.policy_head, hidden, obs)
        if self.log_std is not None:
            outputs = torch.cat([outputs, self.log_std.expand_as(outputs)], dim=-1)
        values = self.value_head(value_hidden)
        return Outputs(outputs, values if self.value_shape else values.squeeze(-1))


class RecurrentActorCritic(ActorCritic):
    """`ActorCritic` with an LSTM or GRU between the hidden layers and the heads; see JAX's class of this name."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        width = config.lstm_cell_size
        super().__init__(observation_space, num_outputs, config, head_features=width, value_shape=value_shape)
        inputs = {"prev_actions": config.lstm_use_prev_action, "prev_rewards": config.lstm_use_prev_reward}
        self.memory_inputs = tuple(name for name, used in inputs.items() if used)
        self.action_encoder = Encoder(action_space, config) if config.lstm_use_prev_action else None
        extra = (self.action_encoder.features if self.action_encoder else 0) + config.lstm_use_prev_reward
        cell = GRU if config.use_gru else LSTM
        width = self.policy_trunk.features + extra
        self.policy_memory = cell(width, config.lstm_cell_size)
        self.value_memory = None if self.value_trunk is None else cell(width, config.lstm_cell_size)

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory, without the axis of sequences."""
        memories = 1 if self.value_memory is None else 2
        return (np.zeros(memories * self.policy_memory.parts * self.policy_memory.features, np.float32),)

    def forward(  # type: ignore[override]  a model with memory is another kind of model
        self, obs: Any, state: Sequence[Tensor], prev_actions: Any = None, prev_rewards: Any = None
    ) -> Outputs:
        extra = [] if self.action_encoder is None else [self.action_encoder(prev_actions)]
        if "prev_rewards" in self.memory_inputs:
            extra.append(prev_rewards[:, None])
        parts = state[0].split(self.policy_memory.features, dim=1)
        count = self.policy_memory.parts
        hidden = torch.cat([self.policy_trunk(obs), *extra], dim=-1)
        hidden, parts_out = self.policy_memory(hidden, parts[:count])
        value_hidden = hidden
        if self.value_trunk is not None and self.value_memory is not None:
            value_hidden = torch.cat([self.value_trunk(obs), *extra], dim=-1)
            value_hidden, value_parts = self.value_memory(value_hidden, parts[count:])
            parts_out = (*parts_out, *value_parts)
        return self.heads(hidden, value_hidden, obs)._replace(state=(torch.cat(parts_out, dim=1),))


class CentralCritic(nn.Module):
    """State values from observations and actions of all agents, as `rollax.models.centralized_critic.CentralCritic`."""

    _agents: Tensor

    def __init__(self, critic_space: Any, config: ModelConfig, value_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        agents = number_of_agents(critic_space)
        self.own_encoder = Encoder(critic_space["obs"], config)
        self.other_encoder = Encoder(critic_space["other"], config)
        features = agents + self.own_encoder.features + (agents - 1) * self.other_encoder.features
        self.mlp = make_mlp(features, config.fcnet_hiddens, config)
        self.value_shape = value_shape
        self.head = dense(self.mlp.features, math.prod(value_shape), gain=VALUE_GAIN)
        self.register_buffer("_agents", torch.arange(agents), persistent=False)

    def forward(self, critic_obs: Any) -> Tensor:
        """[B, *value_shape] values; the columns of `other` are [B, A - 1, ...]."""
        own = self.own_encoder(critic_obs["obs"])
        which = critic_obs["agent"][:, None] == self._agents
        each = trees.tree_map(lambda column: column.flatten(0, 1), critic_obs["other"])
        others = self.other_encoder(each).reshape(len(own), -1)
        values = self.head(self.mlp(torch.cat([which.to(torch.float32), own, others], dim=-1)))
        return values if self.value_shape else values.squeeze(-1)


class QNetwork(nn.Module):
    """Action values [B, A] as `policy`, and their maximum as `value`, with dueling streams.

    Source: Mnih et al. (2015), doi:10.1038/nature14236; dueling streams: Wang et al. (2016), Eq. 9, arXiv:1511.06581:
        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a').  As in `rollax.models.q_network.QNetwork`, without atoms and noise.
    """

    def __init__(
        self, observation_space: spaces.Space, num_actions: int, config: ModelConfig, *, dueling: bool = True
    ) -> None:
        super().__init__()
        self.trunk = Trunk(observation_space, config)
        self.advantages = make_policy_head(observation_space, self.trunk.features, num_actions, gain=VALUE_GAIN)
        self.value = dense(self.trunk.features, 1, gain=VALUE_GAIN) if dueling else None

    def forward(self, obs: Any) -> Outputs:
        hidden = self.trunk(obs)
        values = policy_outputs(self.advantages, hidden, obs)
        if self.value is not None:
            values = self.value(hidden) + values - self._mean(values, obs)
        return Outputs(values, values.amax(dim=-1))

    def _mean(self, advantages: Tensor, obs: Any) -> Tensor:
        """[B, 1] the mean over all actions, or over valid actions if actions are parametric."""
        if not isinstance(self.advantages, ParametricHead):
            return advantages.mean(dim=1, keepdim=True)
        filled = torch.as_tensor(obs[ACTION_MASK]) > 0
        filled = filled | ~filled.any(dim=1, keepdim=True)  # a last observation may have a mask of zeros
        return torch.where(filled, advantages, 0.0).sum(dim=1, keepdim=True) / filled.sum(dim=1, keepdim=True)


class ActionValue(nn.Module):
    """Q(s, a) of continuous actions, which are concatenated with the encoded observation before `fcnet_hiddens`."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Box, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, config)
        width = self.encoder.features + math.prod(action_space.shape)
        self.mlp = make_mlp(width, config.fcnet_hiddens, config)
        self.head = dense(self.mlp.features, 1, gain=VALUE_GAIN)

    def forward(self, obs: Any, actions: Tensor) -> Tensor:
        """[B] values."""
        flat = actions.reshape(len(actions), -1)
        return self.head(self.mlp(torch.cat([self.encoder(obs), flat], dim=-1))).squeeze(-1)


class Actor(nn.Module):
    """`num_outputs` action parameters from raw observation columns."""

    def __init__(self, observation_space: spaces.Space, num_outputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.trunk = Trunk(observation_space, config)
        self.head = make_policy_head(observation_space, self.trunk.features, num_outputs, gain=POLICY_GAIN)

    def forward(self, obs: Any) -> Outputs:
        return Outputs(policy_outputs(self.head, self.trunk(obs), obs))


class Ensemble(nn.Module):
    """N modules that `make` returns; their stacked outputs [N, ...]."""

    def __init__(self, make: Callable[[], nn.Module], count: int) -> None:
        super().__init__()
        self.members = nn.ModuleList([make() for _ in range(count)])

    def forward(self, *inputs: Any) -> Tensor:
        return torch.stack([member(*inputs) for member in self.members])


class ActorWithCritics(nn.Module):
    """An actor, whose outputs the model returns, critics, which the loss calls, and `log_alpha` for a temperature."""

    def __init__(self, actor: nn.Module, critics: nn.Module, *, initial_alpha: float | None = None) -> None:
        super().__init__()
        self.actor, self.critics = actor, critics
        start = None if initial_alpha is None else torch.tensor(math.log(initial_alpha))
        self.log_alpha = None if start is None else nn.Parameter(start)

    def forward(self, obs: Any) -> Outputs:
        return self.actor(obs)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Inside the block, the module passes gradients only to its inputs, and its running statistics are constant."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        with in_evaluation(with_running_statistics(module)):
            yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def check_own_networks(policy: Any, actions: type[spaces.Space]) -> None:
    """Checks the spaces and the config of a policy that has its own networks instead of the default actor-critic.

    Raises SpaceError for an action space that is not one of `actions`, a Box without finite bounds, or wrong
    embeddings of actions; ConfigError for a custom model, or a setting of the actor-critic.
    """
    name, space = type(policy).__name__, policy.action_space
    if not isinstance(space, actions):
        raise SpaceError("The algorithm does not support these actions.", f"action_space of {name}", space).expected(
            actions.__name__, "use an environment with such actions, or PPO, which takes all kinds"
        )
    if isinstance(space, spaces.Box):
        check_box(space, f"action_space of {name}", bounded=True)
    check_parametric(policy.observation_space, space)
    check_layers(policy.config.model, name)
    if policy.config.model.custom_model is not None:
        raise ConfigError(
            "The algorithm creates its own networks and does not support a custom model.",
            f"config key 'model.custom_model', for {name}",
            policy.config.model.custom_model,
        ).expected(
            "the sizes of the default layers (fcnet_hiddens, fcnet_activation, conv_filters, ...)",
            f"leave custom_model out, or override {name}.make_model and {name}.check_spaces",
        )


def make_model(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    num_outputs: int,
    config: ModelConfig,
    value_shape: tuple[int, ...] = (),
) -> nn.Module:
    """The default actor-critic, with or without memory, for the `model` part of a config.

    Raises ConfigError for `use_attention`, and for `free_log_std` without a Box of actions or with odd `num_outputs`.
    """
    if config.free_log_std and (num_outputs % 2 or not isinstance(action_space, spaces.Box)):
        raise ConfigError(
            "free_log_std requires actions that all have a standard deviation.",
            "config key 'model.free_log_std'",
            action_space,
        ).expected("a Box action space", "leave free_log_std out for this action space")
    if config.use_attention:
        raise ConfigError("Models in PyTorch have no transformer.", "config key 'model.use_attention'", True).expected(
            "use_lstm or use_gru, or an algorithm in JAX", "set model.use_lstm in its place"
        )
    if config.has_memory:
        return RecurrentActorCritic(observation_space, action_space, num_outputs, config, value_shape)
    return ActorCritic(observation_space, num_outputs, config, value_shape=value_shape)
