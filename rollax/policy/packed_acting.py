"""`PackedActing`: the actions of a model without memory, in a compiled call with few arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import Columns, SampleBatch
from rollax.core import trees
from rollax.policy.actor import Actor
from rollax.policy.checks import check_finite
from rollax.policy.split_model import vector_parts
from rollax.policy.update_plan import acting_bucket

_MOST_PARAMETERS = 1 << 15
_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


class _Form(NamedTuple):
    """The place of actions in the array that joins them with the fetched columns.

    Args:
        joined: whether actions are in that array; if not, the other fields have no meaning.
        shape: the shape of one action.
        dtype: int32 or float32.
        width: the number of columns of the actions, which are the first columns.
    """

    joined: bool = False
    shape: tuple[int, ...] = ()
    dtype: np.dtype = _INT32
    width: int = 0

    def actions_in(self, columns: np.ndarray) -> np.ndarray:
        """The actions [N, *shape], as a view of joined columns [N, W]."""
        actions = columns[:, : self.width] if self.shape else columns[:, 0]
        if self.dtype is not _INT32:
            actions = actions.view(self.dtype)
        return actions if len(self.shape) < 2 else actions.reshape(len(actions), *self.shape)


_forms: WeakKeyDictionary[Actor, dict[Any, _Form]] = WeakKeyDictionary()
"""Actor -> (shape of an observation, `explore`) -> form. Equal actors share forms, and are traced only once."""


class PackedActing:
    """`compute_actions` of a policy without memory, for observations that the environment's adapter has checked.

    Each array that a compiled call takes or returns costs as much as a small layer. This class therefore joins arrays
    where their dtypes allow it: observations and random numbers into one array, a row for each observation; actions and
    fetched columns into one array, which `columns_of` splits; and the parameters of a small model, once after each
    update. The numbers are the same as from `compute_actions`.

    Args:
        policy: a `JaxPolicy`.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._params: Columns = {}
        self._packed: Any = None  # the parameters, joined if they are few
        self._inputs: dict[tuple[int, int], np.ndarray] = {}
        self._layout: tuple[int, tuple[int, ...], int] | None = None  # what `_views` are for
        self._views: tuple[np.ndarray, np.ndarray, np.ndarray]
        self._forms = _forms.setdefault(policy.actor, {})
        self._form = _Form()  # the form of the last call's actions

    def actions(self, obs: trees.Tree, explore: bool) -> tuple[trees.Tree, trees.Tree]:
        """The actions for columns of N observations, and all columns [N, ...] in one tree, which `columns_of` splits.

        Raises:
            EnvError: an action mask allows no action, or an integer needs more than 32 bits.
        """
        policy, rows = self._policy, trees.length(obs)
        are_floats = isinstance(obs, np.ndarray) and obs.dtype == _FLOAT32
        if not are_floats:
            policy.check_masks(obs)
            policy.wide_integers.check(obs, policy.name)
        params, size = policy.params, acting_bucket(rows)
        if params is not self._params:
            self._params, self._packed = params, _joined(params) if _are_few(params) else params
        noise, shape = None, None
        others: dict[str, Any] = {"extra": policy.extra} if policy.extra else {}
        if explore:
            noise = policy.exploration.noise(policy.acting_rng, size, policy.timestep)
            if policy.noisy:
                others["noise_seed"] = policy._draw_noise_seed()
        if are_floats:
            shape, inputs = obs.shape[1:], self._row(obs, noise, size)
        else:
            inputs = obs if size == rows else trees.pad(obs, size)
            if explore:
                others["noise"] = noise
        form = self._forms.get((shape, explore))
        if form is None:
            form = _form(policy.actor, shape, explore, self._packed, inputs, others)
            self._forms[shape, explore] = form
        self._form = form
        out = _compiled(policy.actor, shape, explore, form.joined, self._packed, inputs, **others)
        if not form.joined:
            actions, columns = trees.tree_map(lambda leaf: np.asarray(leaf)[:rows], out)
            return actions, (actions, columns)
        columns = np.asarray(out)
        if size != rows:
            columns = columns[:rows]
        return form.actions_in(columns), columns

    def _row(self, obs: np.ndarray, noise: np.ndarray | None, size: int) -> np.ndarray:
        """[size, D + K] the observations and their random numbers; the array is the same object at each call."""
        layout = len(obs), obs.shape[1:], 0 if noise is None else noise.shape[1]
        if layout != self._layout:
            self._lay_out(layout, size)
        inputs, seen, drawn = self._views
        seen[...] = obs
        if noise is not None:
            drawn[...] = noise
        return inputs

    def _lay_out(self, layout: tuple[int, tuple[int, ...], int], size: int) -> None:
        """Makes views of the array for this number of rows, this shape of an observation and K."""
        rows, shape, drawn = layout
        width = math.prod(shape)
        key = size, width + drawn
        if key not in self._inputs:
            self._inputs[key] = np.zeros(key, np.float32)
        inputs = self._inputs[key]
        inputs[rows:, :width] = 0
        self._views = inputs, inputs[:rows, :width].reshape(rows, *shape), inputs[:, width:]
        self._layout = layout

    def columns_of(self, columns: trees.Tree) -> dict[str, Any]:
        """The actions and the fetched columns of R rows; NonFiniteError if the model's outputs were not finite."""
        policy = self._policy
        if self._form.joined:
            actions, fetched = self._form.actions_in(columns), columns[:, self._form.width :].view(np.float32)
        else:
            actions, fetched = columns
        fetches = policy.actor.fetches_of(fetched)
        check_finite(fetches[policy.checked_fetch], policy.name, policy.timestep)
        return {
            SampleBatch.ACTIONS: trees.tree_map(np.ascontiguousarray, actions),
            **{name: np.ascontiguousarray(column) for name, column in fetches.items()},
        }


def _are_few(params: Columns) -> bool:
    """Whether joining the parameters makes acting faster."""
    size = sum(array.size for array in params.values())
    return size <= _MOST_PARAMETERS and all(array.dtype == np.float32 for array in params.values())


@jax.jit
def _joined(params: Columns) -> jax.Array:
    return jnp.concatenate([params[name].ravel() for name in sorted(params)])


def _form(
    actor: Actor, shape: tuple[int, ...] | None, explore: bool, params: Any, inputs: Any, others: dict[str, Any]
) -> _Form:
    actions, fetched = jax.eval_shape(partial(_act, actor, shape, explore), params, inputs, **others)
    has_bits = hasattr(actions, "dtype") and actions.dtype in (np.int32, np.float32) and fetched.dtype == np.float32
    if not has_bits:
        return _Form()
    of_one = actions.shape[1:]
    return _Form(True, of_one, np.dtype(actions.dtype), math.prod(of_one))


# Each argument of a compiled call costs time, an empty one too: absent ones are left out of `others`.
@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compiled(
    actor: Actor, shape: tuple[int, ...] | None, explore: bool, joins: bool, params: Any, inputs: Any, **others: Any
) -> Any:
    actions, fetched = _act(actor, shape, explore, params, inputs, **others)
    return _together(actions, fetched) if joins else (actions, fetched)


def _act(
    actor: Actor,
    shape: tuple[int, ...] | None,
    explore: bool,
    params: jax.Array | Columns,
    obs: Any,
    extra: Columns = MappingProxyType({}),
    noise: Any = None,
    noise_seed: Any = None,
) -> tuple[Any, jax.Array]:
    """Actions and fetched columns. If `shape` is not None, `obs` joins observations of this shape with noise."""
    if not isinstance(params, Mapping):
        params = vector_parts({name: array.shape for name, array in sorted(actor.split.params.items())}, params)
    if shape is not None:
        width = math.prod(shape)
        obs, noise = obs[:, :width].reshape(-1, *shape), obs[:, width:] if explore else None
    actions, fetched, _ = actor.traced_actions(params, extra, {SampleBatch.OBS: obs}, noise, noise_seed)
    return actions, fetched


def _together(actions: jax.Array, fetched: jax.Array) -> jax.Array:
    """[S, W] int32 the bits of actions and fetched columns."""
    parts = actions.reshape(len(actions), -1), fetched
    return jnp.concatenate([lax.bitcast_convert_type(part, jnp.int32) for part in parts], axis=1)
