"""`LinearPolicy`: action parameters that are linear in the observation, without a bias."""

from __future__ import annotations

from typing import Any

from flax import nnx
from gymnasium import spaces

from rollax.models.config import ModelConfig
from rollax.models.encoder import Encoder
from rollax.models.layers import zeros_init
from rollax.models.outputs import Outputs


class LinearPolicy(nnx.Module):
    """Action parameters M x for the encoded observation x; the matrix M is initially 0.

    Source: Mania et al. (2018), section 3, arXiv:1803.07055.
    """

    def __init__(
        self, observation_space: spaces.Space, num_outputs: int, config: ModelConfig, *, rngs: nnx.Rngs
    ) -> None:
        self.encoder = Encoder(observation_space, config, rngs=rngs)
        self.head = nnx.Linear(self.encoder.features, num_outputs, use_bias=False, kernel_init=zeros_init, rngs=rngs)

    def __call__(self, obs: Any) -> Outputs:
        return Outputs(self.head(self.encoder(obs)))
