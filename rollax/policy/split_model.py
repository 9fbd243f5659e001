"""`SplitModel`: a Flax model as a static graph, and the arrays of models, optimizers and other state by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rollax.policy.checks import check_weights

_SET_BY_MODE = ("deterministic", "use_running_average")


def owners_of(model: nnx.Module) -> dict[str, set[str]]:
    """Name of a parameter -> all attributes of the model that contain it."""
    names = {id(node): ".".join(map(str, path)) for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Param)}
    owners: dict[str, set[str]] = {name: set() for name in names.values()}
    for attribute, value in vars(model).items():
        for _, node in nnx.iter_graph(value):
            if id(node) in names:
                owners[names[id(node)]].add(attribute)
    return owners


class SplitModel:
    """The graph of a model, with the shapes and dtypes of its parameters, `params`, and of all other arrays, `extra`.

    It has no arrays, so that models with equal graphs can share compiled functions. It replaces `nnx.jit`, which walks
    the module's graph at every call; this costs more than a small forward pass.
    """

    def __init__(self, model: nnx.Module) -> None:
        model.train()
        self._learning_graph, params, extra = nnx.split(model, nnx.Param, ...)
        self._acting_graph = self._exploring_graph = self._learning_graph
        if _has_modes(model):
            # The graphs differ in Dropout and BatchNorm; the arrays are the same.
            model.set_attributes(use_running_average=True, raise_if_not_found=False)
            self._exploring_graph = nnx.split(model, nnx.Param, ...)[0]
            model.eval()
            self._acting_graph = nnx.split(model, nnx.Param, ...)[0]
            model.train()
        self._params_tree, param_arrays = _named(params)
        self._extra_tree, extra_arrays = _named(extra)
        self._keys = {n: jax.random.key_impl(v) for n, v in extra_arrays.items() if is_random_key(v)}
        self.params, self.extra = _shapes(param_arrays), _shapes(self._without_keys(extra_arrays))

    def arrays_of(self, model: nnx.Module) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """`(params, extra)` of a model with this graph, each name -> array."""
        _, params, extra = nnx.split(model, nnx.Param, ...)
        return {name: _typed(value) for name, value in _named(params)[1].items()}, self._without_keys(_named(extra)[1])

    @cached_property
    def _content(self) -> Any:
        """A hash, and the content to compare; a graph with a constant that cannot be hashed is equal only to itself."""
        graphs = self._acting_graph, self._exploring_graph, self._learning_graph
        arrays = tuple((name, a.shape, str(a.dtype)) for name, a in {**self.params, **self.extra}.items())
        content = graphs, self._params_tree, self._extra_tree, arrays, tuple(map(str, self._keys.values()))
        try:
            return hash(content), content
        except TypeError:
            return id(self), self

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, SplitModel):
            return self is other
        (number, content), (others_number, others_content) = self._content, other._content
        return number == others_number and content == others_content

    def __hash__(self) -> int:
        return self._content[0]

    def __deepcopy__(self, memo: Any) -> SplitModel:
        return self

    def merge(
        self,
        params: Mapping[str, Any],
        extra: Mapping[str, Any],
        *,
        learning: bool = False,
        exploring: bool = False,
        noise_seed: Any = None,
    ) -> Any:
        """The model with these arrays, in training mode if `learning` or `exploring`, otherwise in evaluation mode.

        If `exploring`, it uses running batch statistics, because statistics of a few rows and padding would be
        meaningless. `noise_seed` [] uint32 seeds new random streams; None keeps the streams in `extra`.
        """
        state = [self._key(n, extra[n], noise_seed) if n in self._keys else extra[n] for n in self.extra]
        trained = jax.tree.unflatten(self._params_tree, [params[name] for name in self.params])
        graph = self._learning_graph if learning else self._exploring_graph if exploring else self._acting_graph
        return nnx.merge(graph, trained, jax.tree.unflatten(self._extra_tree, state))

    def _key(self, name: str, data: Any, seed: Any) -> jax.Array:
        key = jax.random.wrap_key_data(data, impl=self._keys[name])
        if seed is None:
            return key
        # An ensemble has one key for each member.
        return jax.vmap(jax.random.fold_in, (0, None))(key, seed) if key.ndim else jax.random.fold_in(key, seed)

    def extra_of(self, model: nnx.Module) -> dict[str, jax.Array]:
        """The state after a forward pass, without the parameters: batch statistics and random streams.

        New values that the pass has added to the model, for example with `sow`, are left out.
        """
        if not self.extra:
            return {}
        extra = self.arrays_of(model)[1]
        return {name: extra[name] for name in self.extra}

    def _without_keys(self, extra: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Random keys as plain arrays, which can be stored."""
        return {n: jax.random.key_data(v) if n in self._keys else _typed(v) for n, v in extra.items()}

    def checked(self, weights: Mapping[str, Any], where: str) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """`(params, extra)` from weights by name; raises PolicyError for names or shapes of another model."""
        expected = {**self.params, **self.extra}
        check_weights(weights, {name: array.shape for name, array in expected.items()}, where)
        # Copies, since the caller may change its arrays later; unlike jnp.array, this compiles nothing.
        copies = {name: jax.device_put(np.array(weights[name], array.dtype)) for name, array in expected.items()}
        return {name: copies[name] for name in self.params}, {name: copies[name] for name in self.extra}


def _has_modes(model: nnx.Module) -> bool:
    """Whether `train` and `eval` can change the model, through attributes of its modules or its own methods."""
    if any(getattr(type(model), name) is not getattr(nnx.Module, name) for name in ("train", "eval", "set_attributes")):
        return True
    return any(hasattr(module, name) for _, module in nnx.iter_modules(model) for name in _SET_BY_MODE)


def _named(state: Any) -> tuple[Any, dict[str, jax.Array]]:
    paths, tree = jax.tree_util.tree_flatten_with_path(state)
    return tree, {_name(path): leaf for path, leaf in paths}


def _name(path: tuple[Any, ...]) -> str:
    # The last part of a path leads from a variable to its value.
    parts = path[:-1] if isinstance(path[-1], jax.tree_util.GetAttrKey) else path
    return ".".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in parts)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}


def _typed(value: Any) -> jax.Array:
    # A weak type, as in `nnx.Param(jnp.array(1.0))`, would become a strong type, and the change would recompile.
    array = jnp.asarray(value)
    return jnp.asarray(array, array.dtype)


def vector_parts(shapes: Mapping[str, tuple[int, ...]], vector: Any) -> dict[str, Any]:
    """Returns name -> array of these shapes, from a vector that contains the arrays one after another."""
    parts, start = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        parts[name] = vector[start : start + size].reshape(shape)
        start += size
    return parts


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
