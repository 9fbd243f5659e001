"""Parametric actions: the available actions change from step to step, and an embedding describes each action."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Shaped

from rollax.core.spaces import ACTION_MASK
from rollax.models.layers import dense

WIDTH = 64


class ParametricHead(nnx.Module):
    """Logits [B, S] of actions with embeddings [B, S, E]: scaled dot products of a query and keys.

    The query is computed from the features, and one key from each embedding. All embeddings share the weights, so that
    a permutation of the actions permutes the logits. The action mask excludes padded embeddings.

    Source: Vaswani et al. (2017), Eq. 1, arXiv:1706.03762: q·k / sqrt(d). Deviations: there is no softmax here, and a
    tanh is applied to the keys, so that the logit need not be linear in the embedding. A small `gain` of the query's
    kernel makes the initial policy almost uniform over the valid actions.
    """

    reads_embeddings = True

    def __init__(self, features: int, embedding_size: int, *, gain: float, rngs: nnx.Rngs) -> None:
        self.intent = dense(features, WIDTH, gain=gain, rngs=rngs)
        self.key = dense(embedding_size, WIDTH, gain=1.0, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B F"], embeddings: Shaped[Array, "B S E"]) -> Float[Array, "B S"]:
        keys = jnp.tanh(self.key(embeddings))
        return jnp.einsum("bk,bsk->bs", self.intent(hidden), keys) / math.sqrt(WIDTH)


def filled_slots(obs: Any) -> Bool[Array, "B S"]:
    """Whether each slot contains an action; all true for a mask of zeros, as in the last observation of an episode."""
    filled = jnp.asarray(obs[ACTION_MASK]) > 0
    return filled | ~filled.any(axis=1, keepdims=True)
