"""The `model` part of an algorithm's config. It does not import JAX, so that a config can be read without JAX."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf, PositiveInt, field_serializer, model_validator

from rollax.core.frozen import FrozenModel
from rollax.core.importing import StoredCode, path_of

Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "linear"]
Normalization = Literal["layer", "batch", "batch_renorm"]
Width = Annotated[int, Field(ge=1, le=2**24)]
"""The size of a layer, kernel or stride. The products of larger sizes would overflow integers."""
Kernel = Width | tuple[Width, Width]
ConvFilter = tuple[Width, Kernel, Width]
MOST_LAYERS = 1000
"""The largest number of layers in a config. A small file could name millions of layers, which would take too long."""


def _checked_model(value: Any) -> Any:
    if value is None or isinstance(value, type | str | StoredCode):
        return value
    raise ValueError("a class (not an instance of it), or 'module:Class'")


# Not `str`, because pydantic would convert an `ImportPath` to a plain string.
CustomModel = Annotated[type | InstanceOf[str] | InstanceOf[StoredCode] | None, BeforeValidator(_checked_model)]


class LayersConfig(FrozenModel):
    """The layers between observations and heads."""

    fcnet_hiddens: tuple[Width, ...] = Field(
        default=(64, 64),
        max_length=MOST_LAYERS,
        description="widths of the hidden layers after the encoder; (): none. A network whose inputs are only images "
        "has none either: conv_dense is its hidden layer",
    )
    fcnet_activation: Activation = Field(default="tanh", description="activation after each of fcnet_hiddens")
    normalization: Normalization | None = Field(
        default=None,
        description="the normalization after each activation of fcnet_hiddens: layer, batch, or batch_renorm (batch "
        "renormalization); the last two also normalize the input of fcnet_hiddens, and use the statistics of the "
        "minibatch in updates, but running statistics everywhere else; None: no normalization",
    )
    normalize_before_activation: bool = Field(
        default=False,
        description="whether normalization precedes each activation instead; convolutions and conv_dense are then "
        "normalized too",
    )
    residual_blocks: bool = Field(
        default=False,
        description="whether fcnet_hiddens are residual blocks, all of the same width, after one more dense layer: "
        "x + W₂ f(W₁ N(x)), four times as wide inside, with the activation f and the normalization N, which also "
        "follows the last block",
    )
    normalize_observations: bool = Field(
        default=False,
        description="whether the network standardizes observations of floats, except images, by their running mean and "
        "standard deviation in updates. Replayed observations get the current statistics, unlike with "
        "observation_filter",
    )
    conv_filters: Annotated[tuple[ConvFilter, ...], Field(max_length=MOST_LAYERS)] | None = Field(
        default=None,
        description="convolutions of each image: [[output channels, kernel, stride], ...] without padding, where "
        "kernel is a side or [height, width]; None: by the shorter side of the image",
    )
    conv_activation: Activation = Field(default="relu", description="activation after each convolution and conv_dense")
    conv_dense: Width | None = Field(
        default=None,
        description="width of the layer after the last convolution; None: by the shorter side of the image",
    )

    @property
    def conv_normalization(self) -> Normalization | None:
        """The normalization before each activation of convolutions and of `conv_dense`; None if there is none."""
        return self.normalization if self.normalize_before_activation else None

    @property
    def has_statistics(self) -> bool:
        """Whether the layers have running statistics of the rows of updates."""
        return self.normalize_observations or self.normalization in ("batch", "batch_renorm")

    @model_validator(mode="after")
    def _blocks_of_one_width(self) -> LayersConfig:
        if self.residual_blocks and len(set(self.fcnet_hiddens)) != 1:
            raise ValueError("fcnet_hiddens of one or more equal widths with residual_blocks, such as (128, 128)")
        if self.residual_blocks and self.normalize_before_activation:
            raise ValueError("no normalize_before_activation with residual_blocks: normalization precedes each block")
        return self


class CriticConfig(LayersConfig):
    """The layers of critics whose sizes are configured separately from the actor."""

    part = "critic_model"

    fcnet_hiddens: tuple[Width, ...] = Field(
        default=(256, 256), max_length=MOST_LAYERS, description="widths of the hidden layers; (): none"
    )
    fcnet_activation: Activation = Field(default="relu", description="activation after each of fcnet_hiddens")
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="probability with which an update drops an output of fcnet_hiddens, in targets too. With dropout "
        "the order is: dense layer, dropout, normalization, activation",
    )

    @model_validator(mode="after")
    def _no_dropout_of_blocks(self) -> CriticConfig:
        if self.residual_blocks and self.dropout:
            raise ValueError("no dropout with residual_blocks")
        return self


class ModelConfig(LayersConfig):
    """The network from observations to the inputs of the action distribution."""

    part = "model"

    vf_share_layers: bool = Field(
        default=False,
        description="whether the value head uses the hidden layers of the policy; false: it has separate layers, "
        "including convolutions",
    )
    free_log_std: bool = Field(
        default=False,
        description="whether the log standard deviations of a diagonal Gaussian are one trained vector, instead of a "
        "function of the observation",
    )
    log_std_init: float = Field(
        default=0.0, ge=-20, le=2, description="the initial log standard deviation of free_log_std"
    )
    use_lstm: bool = Field(default=False, description="an LSTM between the hidden layers and the heads")
    use_gru: bool = Field(default=False, description="a GRU instead of the LSTM")
    use_attention: bool = Field(default=False, description="a gated transformer (GTrXL) instead of the LSTM")
    lstm_cell_size: Width = Field(default=64, description="width of the state of the LSTM or GRU")
    lstm_use_prev_action: bool = Field(
        default=False, description="whether the previous action is an input of the memory"
    )
    lstm_use_prev_reward: bool = Field(
        default=False, description="whether the previous reward is an input of the memory"
    )
    attention_dim: Width = Field(default=64, description="width of the transformer's layers and of its output")
    attention_memory: Width = Field(
        default=50, description="M, the rows before each row that a layer of the transformer attends to"
    )
    attention_num_transformer_units: Annotated[int, Field(ge=1, le=MOST_LAYERS)] = Field(
        default=1, description="number L of layers; together they reach L · M rows back"
    )
    attention_num_heads: Width = Field(default=1, description="heads of each layer")
    attention_head_dim: Width = Field(default=32, description="width of a head's queries, keys and values")
    attention_position_wise_mlp_dim: Width = Field(
        default=32, description="width of the dense layer after the attention"
    )
    attention_init_gru_gate_bias: float = Field(
        default=2.0, description="initial bias of the gates: the larger, the closer a new layer is to the identity"
    )
    max_seq_len: PositiveInt = Field(
        default=20,
        description="with memory, largest number of rows in a training sequence; longer trajectories are split",
    )
    custom_model: CustomModel = Field(
        default=None,
        description="an nnx.Module class, or 'module:Class', built as cls(observation_space, num_outputs, rngs=rngs, "
        "**custom_model_config) and called as model(obs) -> Outputs(policy=[B, num_outputs], value=[B], aux={...}). "
        "It replaces all other keys of model except max_seq_len. A model with memory also has a method initial_state()",
    )
    custom_model_config: dict[str, Any] = Field(default={}, description="further keyword arguments of custom_model")

    @property
    def has_memory(self) -> bool:
        """Whether the default model has memory."""
        return self.use_lstm or self.use_gru or self.use_attention

    @property
    def memory_width(self) -> int:
        """The width of the memory's output."""
        return self.attention_dim if self.use_attention else self.lstm_cell_size

    @model_validator(mode="after")
    def _one_kind_of_memory(self) -> ModelConfig:
        if self.use_lstm + self.use_gru + self.use_attention > 1:
            raise ValueError("only one of use_lstm, use_gru and use_attention to be true")
        if self.has_memory and self.has_statistics:
            raise ValueError(
                "normalization None or 'layer', and no normalize_observations, with memory: padding would count in the "
                "statistics"
            )
        if self.has_memory and self.custom_model is not None:
            raise ValueError(
                "use_lstm, use_gru and use_attention are for the default model: give the custom model initial_state()"
            )
        if (self.lstm_use_prev_action or self.lstm_use_prev_reward) and not self.has_memory:
            raise ValueError("lstm_use_prev_action and lstm_use_prev_reward need use_lstm, use_gru or use_attention")
        return self

    @field_serializer("custom_model", when_used="json")
    def _import_path(self, value: type | str | StoredCode | None) -> str | None:
        if isinstance(value, StoredCode):
            return value.path
        return path_of(value) if isinstance(value, type) else value
