"""`GroupQNetwork`: the values of what the members of a group can do, and of what they do together."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.models.catalog import make_model
from rollax.models.config import ModelConfig
from rollax.models.distributions.base import MASKED_LOGIT
from rollax.models.encoder import Encoder
from rollax.models.group_view import GroupView
from rollax.models.mixers import QMixer, SumMixer
from rollax.models.outputs import Outputs, State, is_recurrent, run_model


class GroupQNetwork(nnx.Module):
    """Each member's action values, side by side, [B, M·N], and as `value` [B] that of their best actions together.

    All members share one network.

    Source: Rashid et al. (2018), section 4, arXiv:1803.11485.

    Args:
        view: what observations hold.
        network: of each member: what it sees -> `Outputs` with its action values [B, N] as `policy`; see `run_model`.
        mixer: None for members whose values are learned independently.
        state_encoder: makes features of the global state, for a mixer that reads it.
    """

    def __init__(
        self, view: GroupView, network: nnx.Module, mixer: QMixer | SumMixer | None, state_encoder: Encoder | None
    ) -> None:
        self.view, self.network = view, network
        self.mixer, self.state_encoder = mixer, state_encoder

    def __call__(self, obs: Any) -> Outputs:
        return self._outputs({"obs": obs})

    def values(self, columns: Any) -> tuple[Float[Array, "B M N"], State]:
        """Each member's values, those of invalid actions at the bottom; and the state after the rows, with memory.

        Args:
            columns: as for `run_model`, all of the group.
        """
        view, obs = self.view, columns["obs"]
        inputs = {"obs": view.seen(obs)}
        if is_recurrent(self.network):
            inputs["state_in"] = tuple(_joined(jnp.swapaxes(part, 0, 1)) for part in columns["state_in"])
            for name in getattr(self.network, "memory_inputs", ()):
                column = columns[name]
                of_all = jnp.concatenate(column) if name == "prev_actions" else jnp.tile(column, view.members)
                inputs[name] = of_all
        out = run_model(self.network, inputs)
        values = jnp.swapaxes(_parted(out.policy, view.members), 0, 1)
        if view.masked:
            values = jnp.where(view.valid(obs), values, MASKED_LOGIT)
        return values, tuple(jnp.swapaxes(_parted(part, view.members), 0, 1) for part in out.state)

    def joint(self, values: Float[Array, "B M"], obs: Any) -> Float[Array, "B K"]:
        """The value of the members' actions together, K = 1; without a mixer each one's own, K = M.

        Args:
            values: of each member's action; that of an absent member counts nothing.
            obs: the group's observations of the same rows.
        """
        values = jnp.where(self.view.present(obs), values, 0.0)
        if self.mixer is None:
            return values
        if isinstance(self.mixer, SumMixer):
            return self.mixer(values)[:, None]
        assert self.state_encoder is not None
        return self.mixer(values, self.state_encoder(self.view.state(obs)))[:, None]

    def _outputs(self, columns: Any) -> Outputs:
        values, state = self.values(columns)
        best = self.joint(values.max(axis=-1), columns["obs"]).mean(axis=-1)
        return Outputs(values.reshape(len(values), -1), best, state)


class RecurrentGroupQNetwork(GroupQNetwork):
    """`GroupQNetwork` whose members have memory: `model(obs, state) -> Outputs`; see `run_model`."""

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """Those of `prev_actions` and `prev_rewards` that a call takes."""
        return tuple(getattr(self.network, "memory_inputs", ()))

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The state at the start of a trajectory, each part [M, ...]."""
        parts = self.network.initial_state()  # type: ignore[attr-defined]  a network with memory has it
        return tuple(np.repeat(np.asarray(part)[None], self.view.members, axis=0) for part in parts)

    def __call__(  # type: ignore[override]  a model with memory is another kind of model
        self, obs: Any, state: State, **memory: Any
    ) -> Outputs:
        return self._outputs({"obs": obs, "state_in": state, **memory})


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
    """The model of a group, with memory where the config's has one.

    Args:
        view: what observations hold.
        observation_space: of the group.
        action_space: of the group.
        config: of the members' network, whose outputs are taken as values, and of what encodes the state.
        mixer: "qmix", "vdn" or None.
        embed: width of the hidden layer of QMIX's mixer.
        hypernet_hiddens: see `QMixer`.
        rngs: where the weights are drawn from.
    """
    assert isinstance(action_space, spaces.Tuple)
    sizes = config.model_copy(update={"vf_share_layers": True, "free_log_std": False})
    seen, choice = view.seen_space(observation_space), action_space.spaces[0]
    network = make_model(seen, choice, view.num_actions, sizes, rngs, needs_value=False)
    kind = RecurrentGroupQNetwork if is_recurrent(network) else GroupQNetwork
    if mixer != "qmix":
        return kind(view, network, SumMixer() if mixer == "vdn" else None, None)
    encoder = Encoder(view.state_space(observation_space), config, rngs=rngs)
    mixing = QMixer(encoder.features, view.members, embed=embed, hypernet_hiddens=hypernet_hiddens, rngs=rngs)
    return kind(view, network, mixing, encoder)


def _joined(x: Array) -> Array:
    """[M·B, ...] from [M, B, ...]."""
    return x.reshape(-1, *x.shape[2:])


def _parted(x: Array, members: int) -> Array:
    """[M, B, ...] from [M·B, ...]."""
    return x.reshape(members, -1, *x.shape[1:])
