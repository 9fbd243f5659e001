"""The arrays of nnx modules, optimizers and other state, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def arrays_in(value: Any) -> dict[str, np.ndarray]:
    """Returns path -> copy of each array in a pytree of nnx modules, variables and arrays; random keys as integers."""
    return {
        path: np.array(jax.random.key_data(array) if is_random_key(array) else array) for path, array in _arrays(value)
    }


def is_node(value: Any) -> bool:
    """Whether a value is a leaf that contains state: a module, an optimizer, a random stream or a variable."""
    return isinstance(value, nnx.Pytree | nnx.Variable)


def flat(value: Any) -> list[tuple[Any, Any]]:
    """`(path, leaf)` of all leaves; a dict whose keys cannot be sorted is a leaf."""
    try:
        return jax.tree_util.tree_flatten_with_path(value, is_leaf=is_node)[0]
    except (TypeError, ValueError):
        return [((), value)]


def _arrays(value: Any) -> Iterator[tuple[str, jax.Array]]:
    """`(path, array)` of all state in a value."""
    for path, leaf in flat(value):
        prefix = jax.tree_util.keystr(path)
        if isinstance(leaf, nnx.Variable):
            leaf = leaf.get_value()
        if isinstance(leaf, nnx.Pytree):
            for rest, array in jax.tree_util.tree_flatten_with_path(nnx.state(leaf))[0]:
                yield prefix + jax.tree_util.keystr(rest), array
        elif isinstance(leaf, jax.Array):
            yield prefix, leaf


def restored(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value with the arrays that `arrays_in` returned; modules and variables are updated in place."""

    def leaf_of(path: Any, leaf: Any) -> Any:
        prefix = jax.tree_util.keystr(path)
        if isinstance(leaf, nnx.Variable):
            leaf.set_value(_like(leaf.get_value(), arrays[prefix]))
        elif isinstance(leaf, nnx.Pytree):
            state = jax.tree_util.tree_map_with_path(
                lambda rest, array: _like(array, arrays[prefix + jax.tree_util.keystr(rest)]), nnx.state(leaf)
            )
            nnx.update(leaf, state)
        elif isinstance(leaf, jax.Array):
            return _like(leaf, arrays[prefix])
        return leaf

    return jax.tree_util.tree_map_with_path(leaf_of, value, is_leaf=is_node)


def _like(array: Any, stored: np.ndarray) -> jax.Array:
    if is_random_key(array):
        return jax.random.wrap_key_data(jnp.array(stored), impl=jax.random.key_impl(array))
    return jnp.array(stored, array.dtype)


def is_random_key(array: Any) -> bool:
    """Whether an array holds keys of JAX's random streams."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
