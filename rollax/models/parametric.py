"""Parametric actions: which actions there are changes from step to step, and each is described by an embedding."""

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
"""The key of a Dict observation that holds one embedding per action slot: a Box [slots, E], padded."""

WIDTH = 64


class ParametricHead(nnx.Module):
    """Logits of the slots, each from the hidden features and the slot's own embedding.

    An intent is made from the features and a key from each embedding; a slot's logit is their scaled dot product. All
    slots share the weights, so a permutation of the slots permutes the logits, and an action means the same in
    whichever slot it stands. Empty slots get a logit too: the action mask removes them.

    Source: Vaswani et al. (2017), Eq. 1, arXiv:1706.03762: q·k / sqrt(d). Deviations: no softmax here; the keys pass a
    tanh, so that what an action is worth need not be linear in its embedding.

    Args:
        features: width of the hidden features.
        embedding_size: width E of an embedding.
        gain: of the intent's kernel; a small one makes the first policy almost uniform over the valid slots.
        rngs: where the weights are drawn from.
    """

    def __init__(self, features: int, embedding_size: int, *, gain: float, rngs: nnx.Rngs) -> None:
        self.intent = dense(features, WIDTH, gain=gain, rngs=rngs)
        self.key = dense(embedding_size, WIDTH, gain=1.0, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B F"], embeddings: Shaped[Array, "B S E"]) -> Float[Array, "B S"]:
        keys = jnp.tanh(self.key(embeddings))
        return jnp.einsum("bk,bsk->bs", self.intent(hidden), keys) / math.sqrt(WIDTH)


PolicyHead = nnx.Linear | ParametricHead


def is_parametric(observation_space: spaces.Space) -> bool:
    """True where observations bring the embeddings of the actions that there are."""
    return isinstance(observation_space, spaces.Dict) and EMBEDDINGS in observation_space.spaces


def check_parametric(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Refuses embeddings of actions that do not fit the action space; other observation spaces pass.

    Raises:
        SpaceError: no action mask beside them, no Box [slots, E], or not one slot for each action of a Discrete space.
    """
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
    """A `ParametricHead` where observations bring embeddings of the actions, else a dense layer."""
    if not is_parametric(observation_space):
        return dense(features, num_outputs, gain=gain, rngs=rngs)
    assert isinstance(observation_space, spaces.Dict)
    embeddings = observation_space[EMBEDDINGS]
    assert embeddings.shape is not None
    return ParametricHead(features, embeddings.shape[-1], gain=gain, rngs=rngs)


def policy_outputs(head: PolicyHead, hidden: Float[Array, "B F"], obs: Any) -> Float[Array, "B A"]:
    """What the head makes of hidden features and, if it is parametric, of the embeddings in the observations."""
    return head(hidden, jnp.asarray(obs[EMBEDDINGS])) if isinstance(head, ParametricHead) else head(hidden)
