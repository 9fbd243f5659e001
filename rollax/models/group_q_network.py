"""`GroupQNetwork`: action values of a group's members, and mixers, which combine them into a joint value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.distributions.discrete import masked
from rollax.models.encoder import Encoder
from rollax.models.group_view import GroupView
from rollax.models.layers import MLP, dense
from rollax.models.outputs import Outputs, State, initial_state_of, is_recurrent, run_model


class Hypernetwork(nnx.Module):
    """`outputs` weights of another network, as a function of a state: hidden layers with ReLU, then a linear layer."""

    def __init__(self, features: int, hiddens: Sequence[int], outputs: int, *, rngs: nnx.Rngs) -> None:
        self.hidden = MLP(features, hiddens, "relu", rngs=rngs)
        self.output = dense(self.hidden.features, outputs, gain=1.0, rngs=rngs)

    def __call__(self, state: Float[Array, "B F"]) -> Float[Array, "B W"]:
        return self.output(self.hidden(state))


class QMixer(nnx.Module):
    """`mixer(values, state)`: a joint value that greedy actions maximize: it never falls when a member's value rises.

    Source: Rashid et al. (2018), section 4.1 and Figure 2, arXiv:1803.11485:
        Q_tot = |W_2(s)|ᵀ ELU(|W_1(s)|ᵀ q + b_1(s)) + V(s), where W_1, b_1 and W_2 are hypernetworks and V has one
        hidden layer with ReLU. Deviations, as in the authors' later code: `hypernet_hiddens` adds hidden layers to W_1
        and W_2, which are linear in the paper. `embed` is the width of the mixer's hidden layer.
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


UNMASKED = "unmasked"
"""The key in `Outputs.aux` of the values [B, M, N] of all actions, including those that masks forbid."""


class GroupQNetwork(nnx.Module):
    """All members' action values [B, M·N] as `policy`, and the joint value [B] of their greedy actions as `value`.

    If there is no joint value, `value` is the mean of the members' values. The values in `policy` are masked; `aux` has
    the `unmasked` values. It has memory if the members' network has memory; see `run_model`.

    Source: Rashid et al. (2018), section 4, arXiv:1803.11485; the sum: Sunehag et al. (2017), arXiv:1706.05296.

    Args:
        network: shared by the members; maps a member's view to `Outputs` with its action values [B, N] as `policy`.
        mixer: computes the joint value; None: the sum (`is_sum`), or no joint value (independent members).
        state_encoder: encodes the global state for the mixer.
    """

    def __init__(
        self,
        view: GroupView,
        network: nnx.Module,
        mixer: QMixer | None = None,
        state_encoder: Encoder | None = None,
        *,
        is_sum: bool = False,
    ) -> None:
        self.view, self.network, self.is_sum = view, network, is_sum
        self.mixer, self.state_encoder = mixer, state_encoder

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """The further arguments of a call: some of `prev_actions` and `prev_rewards`; none without memory."""
        return tuple(getattr(self.network, "memory_inputs", ()))

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The recurrent state at the start of a trajectory, each part [M, ...]; () without memory."""
        return tuple(np.repeat(part[None], self.view.members, axis=0) for part in initial_state_of(self.network))

    def __call__(self, obs: Any, state: State = (), **memory: Any) -> Outputs:
        unmasked, state = self._unmasked({"obs": obs, "state_in": state, **memory})
        values = self._masked(unmasked, obs)
        best = self.joint(values.max(axis=-1), obs).mean(axis=-1)
        return Outputs(values.reshape(values.shape[0], -1), best, state, {UNMASKED: unmasked})

    def values(self, columns: Any) -> tuple[Float[Array, "B M N"], State]:
        """Returns each member's values, `MASKED_LOGIT` for invalid actions, and the recurrent state [B, M, ...]."""
        values, state = self._unmasked(columns)
        return self._masked(values, columns["obs"]), state

    def _masked(self, values: Float[Array, "B M N"], obs: Any) -> Float[Array, "B M N"]:
        return masked(values, self.view.valid(obs)) if self.view.masked else values

    def _unmasked(self, columns: Any) -> tuple[Float[Array, "B M N"], State]:
        view, obs = self.view, columns["obs"]
        inputs = {"obs": view.seen(obs)}
        if is_recurrent(self.network):
            inputs["state_in"] = tuple(_joined(jnp.swapaxes(part, 0, 1)) for part in columns["state_in"])
            for name in getattr(self.network, "memory_inputs", ()):
                column = columns[name]
                inputs[name] = jnp.concatenate(column) if name == "prev_actions" else jnp.tile(column, view.members)
        out = run_model(self.network, inputs)
        values = jnp.swapaxes(_parted(out.policy, view.members), 0, 1)
        return values, tuple(jnp.swapaxes(_parted(part, view.members), 0, 1) for part in out.state)

    def joint(self, values: Float[Array, "B M"], obs: Any) -> Float[Array, "B K"]:
        """[B, 1] the joint value of the members' values; [B, M] these values if there is no joint value.

        The value of an absent member counts as 0.
        """
        values = jnp.where(self.view.present(obs), values, 0.0)
        if self.is_sum:
            return values.sum(axis=-1, keepdims=True)
        if self.mixer is None or self.state_encoder is None:
            return values
        return self.mixer(values, self.state_encoder(self.view.state(obs)))[:, None]


def make_group_model(
    view: GroupView,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    config: ModelConfig,
    *,
    mixer: str | None,
    embed: int = 32,
    hypernet_hiddens: tuple[int, ...] = (),
    rngs: nnx.Rngs,
) -> GroupQNetwork:
    """Returns the model of a group with the mixer "qmix", "vdn" or None; it has memory if the config's model does."""
    assert isinstance(action_space, spaces.Tuple)
    sizes = config.model_copy(update={"vf_share_layers": True, "free_log_std": False})
    seen, choice = view.seen_space(observation_space), action_space.spaces[0]
    network = make_model(seen, choice, view.num_actions, sizes, rngs, needs_value=False)
    if mixer != "qmix":
        return GroupQNetwork(view, network, is_sum=mixer == "vdn")
    encoder = Encoder(view.state_space(observation_space), config, rngs=rngs)
    mixing = QMixer(encoder.features, view.members, embed=embed, hypernet_hiddens=hypernet_hiddens, rngs=rngs)
    return GroupQNetwork(view, network, mixing, encoder)


def _joined(x: Array) -> Array:
    """[M·B, ...] from [M, B, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _parted(x: Array, members: int) -> Array:
    """[M, B, ...] from [M·B, ...]."""
    return x.reshape(members, -1, *x.shape[1:])
