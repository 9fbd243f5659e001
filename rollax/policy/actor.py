"""`Actor`: computes actions, values and log-probabilities with the model of a policy, in compiled functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.core.numbers import all_finite
from rollax.core.runtime import StaticArgument, note_trace
from rollax.models.outputs import state_values
from rollax.policy.split_model import SplitModel

if TYPE_CHECKING:
    from rollax.policy.algorithm import Algorithm


@dataclass(frozen=True)
class Actor(StaticArgument):
    """Acts with the model of an algorithm. An actor has no arrays: equal actors share compiled functions.

    `params` and `extra` are the model's arrays. `columns` are inputs of `run_model`, padded to S rows. Methods named
    `traced_...` are called inside compiled functions.

    Attributes:
        algorithm: has the forward pass and the exploration.
        split: the model without its arrays.
        wanted: the columns to fetch, besides the exploration's first one, which is always fetched; None for all.
        noisy: whether the model itself draws random numbers to explore, in training mode.
    """

    algorithm: Algorithm
    split: SplitModel
    wanted: frozenset[str] | None
    noisy: bool = False

    __hash__ = StaticArgument.__hash__

    def actions(
        self,
        params: Columns,
        extra: Columns,
        columns: Columns,
        noise: np.ndarray | None,
        rows: int,
        noise_seed: Any = None,
    ) -> tuple[trees.Tree, list[np.ndarray], dict[str, np.ndarray]]:
        """`(actions, state_out, fetches)` of the first `rows` rows.

        `noise` [S, K] is the result of `Exploration.noise`, or of `Exploration.advance` if the exploration has a state;
        None for the greedy actions. `noise_seed` is [] uint32, the seed of a noisy model that explores.
        """
        actions, packed, states = self._act(params, extra, columns, noise, noise_seed)
        actions = trees.tree_map(lambda leaf: np.array(leaf)[:rows], actions)  # writable, unlike arrays of JAX
        return actions, [np.asarray(part)[:rows] for part in states], self.fetches_of(np.asarray(packed)[:rows])

    def fetches_of(self, packed: Any) -> dict[str, Any]:
        """The fetched columns of N rows, which acting returns in one array [N, W]."""
        return {name: packed[:, place] for name, place in self._fetched.items()}

    def modes(self, params: Columns, extra: Columns, obs: trees.Tree, rows: int) -> trees.Tree | None:
        """The greedy actions of the first `rows` rows, for a model without memory.

        None if the outputs of one of these rows define no action, for example because they are NaN.
        """
        actions = self._modes(params, extra, {SampleBatch.OBS: obs})
        if isinstance(actions, jax.Array):  # the common case
            first = actions = np.asarray(actions)[:rows]
        else:
            actions = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], actions)
            first = next(trees.leaves(actions))
        if first.dtype.kind == "f":
            return actions if all_finite(first) else None
        return None if _mark(first.dtype) in (first.tolist() if first.ndim == 1 else first) else actions

    @partial(jax.jit, static_argnums=0)
    def _act(self, params: Columns, extra: Columns, columns: Columns, noise: Any, noise_seed: Any) -> Any:
        note_trace(self)
        return self.traced_actions(params, extra, columns, noise, noise_seed)

    @partial(jax.jit, static_argnums=0)
    def _modes(self, params: Columns, extra: Columns, columns: Columns) -> Any:
        """The greedy actions; the first leaf is marked in the rows whose outputs define no action.

        A second returned array, with a flag for each row, would take as long as a small layer.
        """
        note_trace(self)
        actions, finite = self.traced_checked_greedy(params, extra, columns)
        (first, *others), tree = jax.tree.flatten(actions)
        first = first.astype(jnp.int8) if first.dtype == bool else first
        marked = jnp.where(finite.reshape(-1, *[1] * (first.ndim - 1)), first, _mark(first.dtype))
        return jax.tree.unflatten(tree, [marked, *others])

    @partial(jax.jit, static_argnums=0)
    def outputs(self, params: Columns, extra: Columns, columns: Columns) -> tuple[jax.Array, tuple]:
        """[S, num_inputs] the model's outputs, with invalid actions masked, and the states for the next step."""
        note_trace(self)
        out = self.algorithm.forward(self.split.merge(params, extra), columns)
        return out.policy, tuple(out.state)

    @partial(jax.jit, static_argnums=0)
    def values(self, params: Columns, extra: Columns, columns: Columns) -> jax.Array:
        """[S] or [S, H] state values, of the model's `critic` if there is a column `critic_obs`."""
        note_trace(self)
        model, algorithm = self.split.merge(params, extra), self.algorithm
        return state_values(model, columns, algorithm.forward, algorithm.value_shape).astype(jnp.float32)

    @partial(jax.jit, static_argnums=(0, 1))
    def method(self, name: str, params: Columns, extra: Columns, *columns: trees.Tree) -> jax.Array:
        """[S, ...] the result of the algorithm's method `name(model, *columns)`."""
        note_trace(self)
        return getattr(self.algorithm, name)(self.split.merge(params, extra), *columns)

    @partial(jax.jit, static_argnums=0)
    def logp(self, inputs: Any, actions: Any) -> jax.Array:
        """[S] log-probabilities of actions under the distribution with these inputs."""
        note_trace(self)
        return self.algorithm.distribution.logp(inputs, actions)

    def traced_actions(
        self, params: Columns, extra: Columns, columns: Columns, noise: Any, noise_seed: Any
    ) -> tuple[Any, Any, tuple]:
        """`(actions, packed, state_out)`, with all fetched columns in `packed`; arguments as for `actions`."""
        explore, exploration = noise is not None, self.algorithm.exploration
        model = self.split.merge(params, extra, exploring=explore and self.noisy, noise_seed=noise_seed)
        out = self.algorithm.forward(model, columns)
        actions = exploration.sample(out.policy, noise) if explore else exploration.mode(out.policy)
        rows, heads = len(out.policy), math.prod(self.algorithm.value_shape)
        values = jnp.zeros((rows, heads)) if out.value is None else out.value.reshape(rows, heads)
        fetches = {**exploration.fetches(out.policy, actions), SampleBatch.VF_PREDS: values}
        # One array instead of three: each array that leaves a compiled function costs as much as a small layer.
        return actions, jnp.concatenate([fetches[name] for name in self._fetched], axis=1), out.state

    def traced_greedy(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, jax.Array, tuple]:
        """`(actions, outputs, state_out)` for B rows, with the model's outputs."""
        out = self.algorithm.forward(self.split.merge(params, extra), columns)
        return self.algorithm.exploration.mode(out.policy), out.policy, tuple(out.state)

    def traced_checked_greedy(self, params: Columns, extra: Columns, columns: Columns) -> tuple[Any, jax.Array]:
        """`(greedy actions, [B] whether the model's outputs define the action)`.

        The check, also made by `compute_actions`, reads the first fetched column and not the outputs: a model may mask
        with minus infinity, for which the log-probability of the action is still finite.
        """
        actions, outputs, _ = self.traced_greedy(params, extra, columns)
        exploration = self.algorithm.exploration
        checked = exploration.fetches(outputs, actions)[next(iter(exploration.fetched))]
        return actions, jnp.isfinite(checked).all(axis=-1)

    @cached_property
    def _fetched(self) -> Mapping[str, int | slice]:
        """The index or slice of each fetched column in the packed array."""
        places: dict[str, int | slice] = {}
        start = 0
        widths = {**self.algorithm.exploration.fetched, SampleBatch.VF_PREDS: math.prod(self.algorithm.value_shape)}
        for number, (name, width) in enumerate(widths.items()):
            if number == 0 or self.wanted is None or name in self.wanted:
                one = width == 1 and name != SampleBatch.ACTION_DIST_INPUTS
                places[name] = start if one else slice(start, start + width)
                start += width
        return places


@cache
def _mark(dtype: np.dtype) -> float | int:
    """A number that is no action: NaN; for signed integers the smallest, for unsigned integers the largest number."""
    if dtype.kind == "f":
        return math.nan
    return int(np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min)
