"""`QNetwork`: the values of discrete actions, as numbers or as distributions of returns; `make_q_network`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.core.spaces import EMBEDDINGS, is_parametric
from rollax.errors import ConfigError, PolicyError
from rollax.models.action_embeddings import check_parametric, embedding_size
from rollax.models.catalog import make_custom_model
from rollax.models.config import Activation, LayersConfig, ModelConfig
from rollax.models.features import HIDDEN_GAIN, VALUE_GAIN
from rollax.models.layers import ACTIVATIONS, dense
from rollax.models.networks import Trunk
from rollax.models.noisy_linear import NoisyLinear
from rollax.models.outputs import Outputs, State, initial_state_of, is_noisy, is_recurrent, run_model
from rollax.models.parametric_head import WIDTH, filled_slots
from rollax.models.recurrent import RecurrentTrunk
from rollax.ops.q_learning import dueling


class Stream(nnx.Module):
    """Layers from hidden features to outputs, all but the last with an activation; with `sigma0`, noisy layers."""

    def __init__(
        self,
        features: int,
        hiddens: Sequence[int],
        outputs: int,
        config: LayersConfig,
        sigma0: float | None,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        widths = (features, *hiddens, outputs)
        self.layers = nnx.List([])
        for place, (a, b) in enumerate(itertools.pairwise(widths)):
            gain = HIDDEN_GAIN if place < len(hiddens) else VALUE_GAIN
            layer = dense(a, b, gain=gain, rngs=rngs) if sigma0 is None else NoisyLinear(a, b, sigma0=sigma0, rngs=rngs)
            self.layers.append(layer)
        self.activation: Activation = config.fcnet_activation

    def __call__(self, x: Float[Array, "B F"]) -> Float[Array, "B O"]:
        *before, last = self.layers
        for layer in before:
            x = ACTIVATIONS[self.activation](layer(x))
        return last(x)


class QNetwork(nnx.Module):
    """Action values [B, A] as `policy`, their maximum as `value`, and in `aux` the `logits` [B, A, K] over K atoms.

    Without a support K is 1, and the logits are the values. With embeddings of the actions in the observations
    (`avail_actions`), the value of an action is computed from its embedding; embeddings that the mask excludes have no
    effect on the values of other actions.

    Source: Mnih et al. (2015), doi:10.1038/nature14236; dueling streams: Wang et al. (2016), arXiv:1511.06581; atoms:
        Bellemare et al. (2017), arXiv:1707.06887; noisy streams: Fortunato et al. (2018), arXiv:1706.10295.

    Args:
        hiddens: widths of the hidden layers of each stream.
        support: [K] the returns of the atoms; None: values are scalars.
        sigma0: σ_0 of noisy layers in the streams; None: the layers are not noisy.
        trunk: the layers before the streams, a `Trunk` or with memory a `RecurrentTrunk` (see `run_model`); None: a
            `Trunk`.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        num_actions: int,
        config: LayersConfig,
        *,
        hiddens: Sequence[int] = (),
        dueling: bool = True,
        support: np.ndarray | None = None,
        sigma0: float | None = None,
        trunk: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_actions, self.noisy = num_actions, sigma0 is not None
        self.support = None if support is None else tuple(support.tolist())
        self.atoms = 1 if support is None else len(support)
        self.trunk: Any = Trunk(observation_space, config, rngs=rngs) if trunk is None else trunk
        self.parametric = is_parametric(observation_space)
        outputs = (WIDTH if self.parametric else num_actions) * self.atoms
        features = self.trunk.features
        self.advantages = Stream(features, hiddens, outputs, config, sigma0, rngs=rngs)
        self.value = Stream(features, hiddens, self.atoms, config, sigma0, rngs=rngs) if dueling else None
        self.key = dense(embedding_size(observation_space), WIDTH, gain=1.0, rngs=rngs) if self.parametric else None

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """The further arguments of a call: some of `prev_actions` and `prev_rewards`; none without memory."""
        return getattr(self.trunk, "memory_inputs", ())

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The recurrent state at the start of a trajectory; () without memory."""
        return initial_state_of(self.trunk)

    def __call__(self, obs: Any, state: State = (), **memory: Any) -> Outputs:
        hidden, state = self.trunk(obs, state, **memory) if is_recurrent(self.trunk) else (self.trunk(obs), ())
        return _value_outputs(self._logits(hidden, obs), self.support, state)

    def _logits(self, hidden: Float[Array, "B F"], obs: Any) -> Float[Array, "B A K"]:
        outputs = self.advantages(hidden)
        if self.key is None:
            outputs = outputs.reshape(-1, self.num_actions, self.atoms)
        else:
            keys = jnp.tanh(self.key(jnp.asarray(obs[EMBEDDINGS])))
            queries = outputs.reshape(-1, WIDTH, self.atoms)
            outputs = jnp.einsum("bwk,bsw->bsk", queries, keys) / math.sqrt(WIDTH)
        if self.value is None:
            return outputs
        by_atom = jax.vmap(dueling, in_axes=(1, 2, None), out_axes=2)
        return by_atom(self.value(hidden)[..., None], outputs, filled_slots(obs) if self.parametric else None)


def expected_values(logits: Float[Array, "B A K"], support: np.ndarray | Sequence[float] | None) -> Float[Array, "B A"]:
    """Returns the expected return of each action; without a support the logits are the values, and K is 1."""
    return logits[..., 0] if support is None else jax.nn.softmax(logits, axis=-1) @ jnp.asarray(support)


def logits_of(out: Outputs, where: str) -> Float[Array, "B A K"]:
    """Returns the `logits` of a `QNetwork`; raises PolicyError for the outputs of another model."""
    if "logits" not in out.aux:
        raise PolicyError(
            "The model does not return the logits of its action values.",
            where,
            f"Outputs with aux of {sorted(out.aux)}",
        ).expected(
            "aux={'logits': [B, actions, atoms]}, as a QNetwork or a CustomQNetwork returns",
            "return CustomQNetwork(model, num_actions, self.support) in make_model; or set model.custom_model, "
            "which is wrapped automatically",
        )
    return out.aux["logits"]


class CustomQNetwork(nnx.Module):
    """A custom model in place of a `QNetwork`; the custom model's `policy` has the flattened `logits` [B, A·K].

    It has memory if the custom model has memory; see `run_model`.
    """

    def __init__(self, network: Any, num_actions: int, support: np.ndarray | None) -> None:
        self.network, self.num_actions, self.noisy = network, num_actions, is_noisy(network)
        self.support = None if support is None else tuple(support.tolist())

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """The further arguments of a call: some of `prev_actions` and `prev_rewards`; none without memory."""
        return tuple(getattr(self.network, "memory_inputs", ()))

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The recurrent state at the start of a trajectory; () without memory."""
        return initial_state_of(self.network)

    def __call__(self, obs: Any, state: State = (), **memory: Any) -> Outputs:
        out = run_model(self.network, {"obs": obs, "state_in": state, **memory})
        logits = out.policy.reshape(out.policy.shape[0], self.num_actions, -1)
        return _value_outputs(logits, self.support, out.state, out.aux)


def make_q_network(
    observation_space: spaces.Space,
    action_space: spaces.Discrete,
    config: ModelConfig,
    *,
    hiddens: Sequence[int] = (),
    dueling: bool = True,
    support: np.ndarray | None = None,
    sigma0: float | None = None,
    rngs: nnx.Rngs,
) -> QNetwork | CustomQNetwork:
    """Returns a network of the values of all actions, with memory or a custom model as `config` says; see `QNetwork`.

    Raises ConfigError if `sigma0` is set and a custom model has no noisy layers; other errors as in `make_model`.
    """
    num_actions = int(action_space.n)
    if config.custom_model is not None:
        width = num_actions * (1 if support is None else len(support))
        network = make_custom_model(observation_space, action_space, width, config, rngs)
        if sigma0 is not None and not is_noisy(network):
            raise ConfigError(
                "The policy explores by noisy layers, but the custom model has none.",
                where="config keys 'noisy' and 'model.custom_model'",
                got=f"noisy=True, and {type(network).__name__} without an attribute noisy = True",
                expected="a model that draws noise in training mode, with the attribute noisy = True",
                fix="set noisy=False for ε-greedy exploration, or build the model from NoisyLinear layers "
                "(rollax.models.noisy_linear), with the attribute noisy = True",
            )
        return CustomQNetwork(network, num_actions, support)
    check_parametric(observation_space, action_space)
    trunk = RecurrentTrunk(observation_space, action_space, config, rngs=rngs) if config.has_memory else None
    return QNetwork(
        observation_space,
        num_actions,
        config,
        trunk=trunk,
        hiddens=hiddens,
        dueling=dueling,
        support=support,
        sigma0=sigma0,
        rngs=rngs,
    )


def _value_outputs(
    logits: Float[Array, "B A K"],
    support: Sequence[float] | None,
    state: State,
    aux: Mapping[str, Any] = MappingProxyType({}),
) -> Outputs:
    values = expected_values(logits, support)
    return Outputs(values, values.max(axis=-1), state, {"logits": logits, **aux})
