"""The `model` part of an algorithm's config. It imports no JAX, so that a config can be read anywhere."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, InstanceOf, PositiveInt, field_serializer, model_validator

from rollax.frozen import FrozenModel
from rollax.importing import StoredCode, path_of

Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "linear"]
Kernel = PositiveInt | tuple[PositiveInt, PositiveInt]
ConvFilter = tuple[PositiveInt, Kernel, PositiveInt]


class ModelConfig(FrozenModel):
    """The network from observations to the inputs of the action distribution."""

    part = "model"

    fcnet_hiddens: tuple[PositiveInt, ...] = Field(
        default=(64, 64),
        description="Widths of the hidden layers over the encoded observation; () makes the heads linear in it. "
        "An observation that is nothing but images has none: `conv_dense` is its hidden layer.",
    )
    fcnet_activation: Activation = Field(default="tanh", description="Activation after each of `fcnet_hiddens`.")
    vf_share_layers: bool = Field(
        default=False,
        description="True: the value head stands on the policy's hidden layers. False: it has layers of its own, "
        "convolutions included.",
    )
    conv_filters: tuple[ConvFilter, ...] | None = Field(
        default=None,
        description="Convolutions over every image of the observation: [[output channels, kernel, stride], ...], a "
        "kernel being one side or [height, width], without padding. None chooses by the shorter side of each image.",
    )
    conv_activation: Activation = Field(
        default="relu", description="Activation after each convolution and `conv_dense`."
    )
    conv_dense: PositiveInt | None = Field(
        default=None,
        description="Width of the layer after the last convolution. None chooses by the shorter side of each image.",
    )
    free_log_std: bool = Field(
        default=False,
        description="The second half of the outputs, a diagonal Gaussian's log standard deviations, is one trained "
        "vector instead of a function of the observation.",
    )
    use_lstm: bool = Field(default=False, description="An LSTM between the hidden layers and the heads.")
    use_gru: bool = Field(default=False, description="A GRU there instead.")
    lstm_cell_size: PositiveInt = Field(default=64, description="Width of the state of the LSTM or GRU.")
    lstm_use_prev_action: bool = Field(default=False, description="The action before is an input of the LSTM or GRU.")
    lstm_use_prev_reward: bool = Field(default=False, description="The reward before is an input of the LSTM or GRU.")
    max_seq_len: PositiveInt = Field(
        default=20,
        description="Rows over which gradients flow back in a model with memory; longer trajectories are cut.",
    )
    custom_model: type | str | InstanceOf[StoredCode] | None = Field(
        default=None,
        description="An nnx.Module class, or 'module:Class', built as cls(observation_space, num_outputs, rngs=rngs, "
        "**custom_model_config) and called as model(obs) -> Outputs(policy=[B, num_outputs], value=[B], aux={...}). "
        "It replaces all of the above but max_seq_len. One with memory has initial_state() too.",
    )
    custom_model_config: dict[str, Any] = Field(default={}, description="More keyword arguments for `custom_model`.")

    @model_validator(mode="after")
    def _one_kind_of_memory(self) -> ModelConfig:
        if self.use_lstm and self.use_gru:
            raise ValueError("use_lstm or use_gru, not both")
        has_memory = self.use_lstm or self.use_gru
        if has_memory and self.custom_model is not None:
            raise ValueError("use_lstm and use_gru are for the default model: give the custom model initial_state()")
        if (self.lstm_use_prev_action or self.lstm_use_prev_reward) and not has_memory:
            raise ValueError("lstm_use_prev_action and lstm_use_prev_reward need use_lstm or use_gru")
        return self

    @field_serializer("custom_model", when_used="json")
    def _import_path(self, value: type | str | StoredCode | None) -> str | None:
        if isinstance(value, StoredCode):
            return value.path
        return path_of(value) if isinstance(value, type) else value
