"""`StackedActing`: greedy actions of many parameter vectors, each for its own observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.policy.devices import Copies
from rollax.policy.split_model import vector_parts

BLOCK = 16
"""The number of slots of one compiled call."""


class StackedActing:
    """Acts in slots, each with its own parameters.

    Slots are padded to blocks of one fixed size, and each block is one call of the same compiled function. A slot's
    actions are therefore the same, bit for bit, for any number of acting slots. A single product over all slots may be
    rounded differently if the number of slots changes.

    Args:
        shapes: name -> shape of a parameter.
        greedy: chooses and checks the actions; see `Actor.traced_checked_greedy`.
        slots: the number of slots.
        device: the device of JAX that acts; None for the default device.
    Attributes:
        blocks: name -> parameters [BLOCK, ...], for each block of slots.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        greedy: Callable[[Columns, Columns, Columns], tuple[Any, jax.Array]],
        slots: int,
        device: Any = None,
    ) -> None:
        self._shapes, self._greedy = shapes, greedy
        self._copies = None if device is None else Copies(device)
        # Zeros of NumPy, because `device_put` compiles nothing.
        self.blocks = [
            {n: jax.device_put(np.zeros((BLOCK, *shape), np.float32), device) for n, shape in self._shapes.items()}
            for _ in range(-(-slots // BLOCK))
        ]
        self._obs: trees.Tree = None
        self._act = jax.jit(self.act_on_block)
        # Without donation: an interrupt between the call and the assignment would leave deleted arrays.
        self._put = jax.jit(self._put_into_block)

    def set_vector(self, slot: int, vector: NDArray[np.float32]) -> None:
        """Sets the parameters of a slot from one vector."""
        block, place = divmod(slot, BLOCK)
        self.blocks[block] = self._put(self.blocks[block], place, vector)

    def set_obs(self, slots: NDArray | slice, obs: trees.Tree) -> None:
        """Sets the observations of N slots: columns [N, ...]."""
        if self._obs is None:
            rows = BLOCK * len(self.blocks)
            self._obs = trees.zeros_like(obs, rows)
        trees.put(self._obs, slots, obs)

    def actions(self, slots: NDArray, extra: Mapping[str, Any]) -> tuple[trees.Tree, NDArray[np.bool_]]:
        """`(columns of N actions, [N] whether the model's outputs define the action)` for these slots.

        Args:
            slots: [N].
            extra: name -> array, the model's other state, the same in all slots.
        """
        blocks = np.unique(slots // BLOCK).tolist()
        if self._copies is not None:
            (extra,) = self._copies.of(extra)
        parts = []
        for block in blocks:
            obs = trees.index(self._obs, slice(block * BLOCK, (block + 1) * BLOCK))
            parts.append(jax.tree.map(np.asarray, self._act(self.blocks[block], extra, obs)))
        actions, finite = trees.concat([(actions, finite) for actions, finite in parts])
        first_row = {block: row * BLOCK for row, block in enumerate(blocks)}
        rows = (
            slots
            if blocks == list(range(len(blocks)))
            else slots % BLOCK + np.array([first_row[block] for block in (slots // BLOCK).tolist()], np.int64)
        )
        return trees.index(actions, rows), finite[rows]

    def act_on_block(self, params: Any, extra: Any, obs: Any) -> tuple[Any, jax.Array]:
        """`(actions, whether the outputs define the action)` of one block's slots; traced by JAX."""

        def one(params: Any, row: Any) -> tuple[Any, jax.Array]:
            columns = {SampleBatch.OBS: jax.tree.map(lambda leaf: leaf[None], row)}
            return jax.tree.map(lambda leaf: leaf[0], self._greedy(params, extra, columns))

        return jax.vmap(one)(params, obs)

    def _put_into_block(self, params: Any, place: jax.Array, vector: jax.Array) -> Any:
        own = vector_parts(self._shapes, vector)
        return {name: leaf.at[place].set(own[name]) for name, leaf in params.items()}
