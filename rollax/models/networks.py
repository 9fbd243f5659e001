"""Default networks for every observation space: `Trunk` and `ActorCritic`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.core.spaces import EMBEDDINGS, is_parametric
from rollax.errors import ConfigError
from rollax.models.config import CriticConfig, LayersConfig, ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.features import POLICY_GAIN, VALUE_GAIN
from rollax.models.layers import MLP, dense
from rollax.models.outputs import Outputs


def make_mlp(in_features: int, hiddens: Sequence[int], config: LayersConfig, *, rngs: nnx.Rngs) -> Any:
    """Returns dense layers with the activation, normalization and dropout of the config, or residual blocks."""
    if config.residual_blocks and hiddens:
        from rollax.models.simba import ResidualMLP  # loaded only where it is used

        return ResidualMLP(in_features, hiddens, config.fcnet_activation, config.normalization, rngs=rngs)
    dropout = config.dropout if isinstance(config, CriticConfig) else 0.0
    return MLP(
        *(in_features, hiddens, config.fcnet_activation, config.normalization),
        norm_first=config.normalize_before_activation,
        dropout=dropout,
        rngs=rngs,
    )


class Trunk(nnx.Module):
    """Hidden features of raw observation columns: `Encoder`, then `fcnet_hiddens` unless all features are images."""

    def __init__(self, observation_space: spaces.Space, config: LayersConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        hiddens = () if self.encoder.images_only else config.fcnet_hiddens
        self.mlp = make_mlp(self.encoder.features, hiddens, config, rngs=rngs)
        self.features = self.mlp.features

    def __call__(self, obs: Any) -> Float[Array, "B F"]:
        return self.mlp(self.encoder(obs))


def hidden_width(observation_space: spaces.Space, config: ModelConfig) -> int:
    """Returns the width of the hidden features from which the default model computes its outputs."""
    if config.has_memory:
        return config.memory_width
    # `eval_shape` allocates no arrays.
    return nnx.eval_shape(lambda: Trunk(observation_space, config, rngs=nnx.Rngs(0))).features


def make_policy_head(
    observation_space: spaces.Space, features: int, num_outputs: int, *, gain: float, rngs: nnx.Rngs
) -> Any:
    """Returns a dense layer, or a `ParametricHead` if observations contain embeddings of the actions."""
    if not is_parametric(observation_space):
        return dense(features, num_outputs, gain=gain, rngs=rngs)
    from rollax.models.action_embeddings import embedding_size  # loaded only where it is used
    from rollax.models.parametric_head import ParametricHead

    return ParametricHead(features, embedding_size(observation_space), gain=gain, rngs=rngs)


def policy_outputs(head: Any, hidden: Float[Array, "B F"], obs: Any) -> Float[Array, "B A"]:
    """Returns the head's outputs for hidden features; a `ParametricHead` also reads the embeddings in observations."""
    reads_embeddings = getattr(head, "reads_embeddings", False)
    return head(hidden, jnp.asarray(obs[EMBEDDINGS])) if reads_embeddings else head(hidden)


class ActorCritic(nnx.Module):
    """Inputs of the action distribution and state values, from raw observation columns.

    Args:
        num_outputs: width of the distribution's inputs; with `free_log_std`, one half are means and the other half log
            standard deviations.
        head_features: input width of the heads; None: the width of the hidden layers.
        value_shape: the shape of the values of one row: () for one value head, else (H,).
    Raises:
        ConfigError: `free_log_std` with an odd number of outputs.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_outputs: int,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        head_features: int | None = None,
        value_shape: tuple[int, ...] = (),
    ) -> None:
        head_outputs = num_outputs
        if config.free_log_std:
            if num_outputs % 2:
                raise ConfigError(
                    "free_log_std requires a diagonal Gaussian, with as many log standard deviations as means.",
                    "model.free_log_std",
                    f"{num_outputs} outputs",
                ).expected("an even number: a Box action space", "leave free_log_std out for this action space")
            head_outputs = num_outputs // 2
        self.policy_trunk = Trunk(observation_space, config, rngs=rngs)
        self.value_trunk = None if config.vf_share_layers else Trunk(observation_space, config, rngs=rngs)
        features = self.policy_trunk.features if head_features is None else head_features
        self.policy_head = make_policy_head(observation_space, features, head_outputs, gain=POLICY_GAIN, rngs=rngs)
        self.value_shape = value_shape
        self.value_head = dense(features, math.prod(value_shape), gain=VALUE_GAIN, rngs=rngs)
        initial = np.full(head_outputs, config.log_std_init, np.float32)
        self.log_std = nnx.Param(jnp.asarray(initial)) if config.free_log_std else None

    def __call__(self, obs: Any) -> Outputs:
        hidden = self.policy_trunk(obs)
        return self.heads(hidden, hidden if self.value_trunk is None else self.value_trunk(obs), obs)

    def heads(self, hidden: Float[Array, "B F"], value_hidden: Float[Array, "B F"], obs: Any) -> Outputs:
        """Returns the model's outputs from the hidden features of actor and critic."""
        dist_inputs = policy_outputs(self.policy_head, hidden, obs)
        if self.log_std is not None:
            log_std = jnp.broadcast_to(self.log_std[...][None], dist_inputs.shape)
            dist_inputs = jnp.concatenate([dist_inputs, log_std], axis=-1)
        values = self.value_head(value_hidden)
        return Outputs(dist_inputs, values if self.value_shape else jnp.squeeze(values, axis=-1))
