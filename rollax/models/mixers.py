"""Mixers: the value of what a group does together, from the values of what its members do."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from rollax.models.layers import MLP, dense

_GAIN = 1.0


class Hypernetwork(nnx.Module):
    """Weights of another network, made from a state: hidden layers with ReLU, then a linear one.

    Args:
        features: width of the state.
        hiddens: widths of the hidden layers.
        outputs: how many weights.
        rngs: where its own weights are drawn from.
    """

    def __init__(self, features: int, hiddens: Sequence[int], outputs: int, *, rngs: nnx.Rngs) -> None:
        self.hidden = MLP(features, hiddens, "relu", rngs=rngs)
        self.output = dense(self.hidden.features, outputs, gain=_GAIN, rngs=rngs)

    def __call__(self, state: Float[Array, "B F"]) -> Float[Array, "B W"]:
        return self.output(self.hidden(state))


class QMixer(nnx.Module):
    """`mixer(values, state)`: a network whose weights depend on the state, and rise with each member's value.

    What is best for each member by its own values is then best for the group.

    Source: Rashid et al. (2018), section 4.1 and Figure 2, arXiv:1803.11485:
        Q_tot = |W_2(s)|ᵀ ELU(|W_1(s)|ᵀ q + b_1(s)) + V(s), where W_1, b_1 and W_2 are hypernetworks and V has one
        hidden layer with ReLU. In the paper W_1 and W_2 are linear in s; with `hypernet_hiddens` they have hidden
        layers too, as in the authors' later code.

    Args:
        state_features: F, width of the state.
        members: M, the values to be mixed.
        embed: E, width of the hidden layer.
        hypernet_hiddens: widths of the hidden layers of W_1 and W_2.
        rngs: where the weights are drawn from.
    """

    def __init__(
        self,
        state_features: int,
        members: int,
        *,
        embed: int = 32,
        hypernet_hiddens: Sequence[int] = (),
        rngs: nnx.Rngs,
    ) -> None:
        self.members, self.embed = members, embed
        self.hidden_weights = Hypernetwork(state_features, hypernet_hiddens, members * embed, rngs=rngs)
        self.hidden_bias = Hypernetwork(state_features, (), embed, rngs=rngs)
        self.output_weights = Hypernetwork(state_features, hypernet_hiddens, embed, rngs=rngs)
        self.output_bias = Hypernetwork(state_features, (embed,), 1, rngs=rngs)

    def __call__(self, values: Float[Array, "B M"], state: Float[Array, "B F"]) -> Float[Array, "B"]:
        weights = jnp.abs(self.hidden_weights(state)).reshape(-1, self.members, self.embed)
        hidden = jax.nn.elu((values[:, :, None] * weights).sum(axis=1) + self.hidden_bias(state))
        return (hidden * jnp.abs(self.output_weights(state))).sum(axis=-1) + self.output_bias(state)[:, 0]


class SumMixer(nnx.Module):
    """`mixer(values)`: their sum.

    Source: Sunehag et al. (2017), section 3, arXiv:1706.05296:  Q_tot = Σ_m Q_m.
    """

    def __call__(self, values: Float[Array, "B M"]) -> Float[Array, "B"]:
        return values.sum(axis=-1)
