"""Parametric actions: the available actions change from step to step, and an embedding describes each."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float, Shaped

from rollax.errors import SpaceError
from rollax.models.layers import dense

EMBEDDINGS = "avail_actions"
"""The key of the embeddings in a Dict observation: a padded Box [slots, E], one row per action."""

WIDTH = 64


class ParametricHead(nnx.Module):
    """Logits of the slots: scaled dot products of a query, made from the features, and each embedding's key.

    All slots share the weights, so a permutation of the slots permutes the logits. The action mask removes empty slots.

    Source: Vaswani et al. (2017), Eq. 1, arXiv:1706.03762: q·k / sqrt(d). Deviations: no softmax here; the keys pass a
    tanh, so that the logit need not be linear in the embedding. A small `gain` of the query's kernel makes the initial
    policy almost uniform over the valid slots.
    """

    def __init__(self, features: int, embedding_size: int, *, gain: float, rngs: nnx.Rngs) -> None:
        self.intent = dense(features, WIDTH, gain=gain, rngs=rngs)
        self.key = dense(embedding_size, WIDTH, gain=1.0, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B F"], embeddings: Shaped[Array, "B S E"]) -> Float[Array, "B S"]:
        keys = jnp.tanh(self.key(embeddings))
        return jnp.einsum("bk,bsk->bs", self.intent(hidden), keys) / math.sqrt(WIDTH)


PolicyHead = nnx.Linear | ParametricHead


def is_parametric(observation_space: spaces.Space) -> bool:
    """Whether observations contain embeddings of the available actions."""
    return isinstance(observation_space, spaces.Dict) and EMBEDDINGS in observation_space.spaces


def embedding_size(observation_space: spaces.Space) -> int:
    """E, the width of the embeddings of a parametric observation space."""
    assert isinstance(observation_space, spaces.Dict)
    shape = observation_space[EMBEDDINGS].shape
    assert shape is not None
    return shape[-1]


def check_parametric(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raises SpaceError unless embeddings are a Box [slots, E], with a mask and one slot for each Discrete action."""
    if not is_parametric(observation_space):
        return
    assert isinstance(observation_space, spaces.Dict)
    where, embeddings = f"observation_space[{EMBEDDINGS!r}]", observation_space[EMBEDDINGS]
    if not isinstance(action_space, spaces.Discrete):
        raise SpaceError(
            "Embeddings of actions for an action space that has no slots.",
            where="action_space",
            got=action_space,
            expected=f"Discrete(slots), since the observation has {EMBEDDINGS!r}",
            fix=f"declare Discrete(slots), or give {EMBEDDINGS!r} another name: it is then a feature like any other",
        )
    if "action_mask" not in observation_space.spaces:
        raise SpaceError(
            "Embeddings of actions without an action mask.",
            where=where,
            got=sorted(observation_space.spaces),
            expected=f"'action_mask' beside {EMBEDDINGS!r}",
            fix=f"add 'action_mask': MultiBinary({action_space.n}), with a 1 for each slot that holds an action",
        )
    if not (isinstance(embeddings, spaces.Box) and len(embeddings.shape) == 2):
        raise SpaceError(
            "Embeddings of actions that are no table.",
            where=where,
            got=embeddings,
            expected=f"a Box of shape ({action_space.n}, E): one embedding of width E per slot",
            fix="give every slot an embedding of the same width, zeros where it is empty",
        )
    if embeddings.shape[0] != action_space.n:
        raise SpaceError(
            "The number of slots is not the number of actions.",
            where=where,
            got=f"{embeddings.shape[0]} slots",
            expected=f"{action_space.n}, as in {action_space}",
            fix=f"declare the action space Discrete({embeddings.shape[0]}), or pad to {action_space.n} slots",
        )


def make_policy_head(
    observation_space: spaces.Space, features: int, num_outputs: int, *, gain: float, rngs: nnx.Rngs
) -> PolicyHead:
    """A `ParametricHead` if observations contain embeddings of the actions, otherwise a dense layer."""
    if not is_parametric(observation_space):
        return dense(features, num_outputs, gain=gain, rngs=rngs)
    return ParametricHead(features, embedding_size(observation_space), gain=gain, rngs=rngs)


def policy_outputs(head: PolicyHead, hidden: Float[Array, "B F"], obs: Any) -> Float[Array, "B A"]:
    """The head's outputs for hidden features and, if it is parametric, for the embeddings in the observations."""
    return head(hidden, jnp.asarray(obs[EMBEDDINGS])) if isinstance(head, ParametricHead) else head(hidden)
