"""Embeddings of the available actions in observations: checks of the spaces. This module does not import JAX."""

from __future__ import annotations

from gymnasium import spaces

from rollax.core.spaces import ACTION_MASK, EMBEDDINGS, is_parametric
from rollax.errors import SpaceError


def embedding_size(observation_space: spaces.Space) -> int:
    """Returns E, the width of the embeddings in an observation space with embeddings."""
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
        what = "The observation has embeddings of actions, but the action space is not Discrete."
        fix = f"declare a Discrete action space, or rename {EMBEDDINGS!r} to make it an ordinary feature"
        raise SpaceError(what, "action_space", action_space, expected=f"Discrete(slots), for {EMBEDDINGS!r}", fix=fix)
    if ACTION_MASK not in observation_space.spaces:
        expected = f"{ACTION_MASK!r} beside {EMBEDDINGS!r}"
        raise SpaceError(
            "Embeddings of actions require an action mask.", where, sorted(observation_space.spaces)
        ).expected(expected, f"add {ACTION_MASK!r}: MultiBinary({action_space.n}), 1 for each slot with an action")
    if not (isinstance(embeddings, spaces.Box) and len(embeddings.shape) == 2):
        raise SpaceError("The embeddings of actions are not a table.", where, embeddings).expected(
            f"a Box of shape ({action_space.n}, E)",
            "give every slot an embedding of the same width E, of zeros for an empty slot",
        )
    if embeddings.shape[0] != action_space.n:
        raise SpaceError(
            "The number of slots is not the number of actions.", where, f"{embeddings.shape[0]} slots"
        ).expected(
            f"{action_space.n}, as in {action_space}",
            f"declare Discrete({embeddings.shape[0]}), or pad to {action_space.n} slots",
        )
